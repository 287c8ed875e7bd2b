/* heat.c - the part of coli.h about heat files. */
#include <string.h>

#include "../base/alloc.h"
#include "../base/file.h"
#include "../model/container.h"
#include "../moe/heat_file.h"
#include "api.h"
#include "coli/coli.h"

struct coli_heat {
    coli__heat_file file;
};

coli_status coli_heat_open(const char *path, coli_heat **out)
{
    if (out) *out = NULL;
    if (!path || !out) return coli__fail(COLI_E_INVALID, "coli_heat_open: an argument is NULL");
    coli_heat *heat = coli__calloc(1, sizeof *heat);
    if (!heat) return COLI_E_NOMEM;
    const coli_status status = coli__heat_file_read(path, &heat->file);
    if (status == COLI_OK)
        *out = heat;
    else
        coli_heat_close(heat);
    return status;
}

void coli_heat_close(coli_heat *heat)
{
    if (!heat) return;
    coli__heat_file_finish(&heat->file);
    coli__free(heat);
}

coli_status coli_heat_get_info(const coli_heat *heat, coli_heat_info *info)
{
    if (!info) return coli__fail(COLI_E_INVALID, "coli_heat_get_info: info is NULL");
    COLI_TRY(coli__struct_clear("coli_heat_info", info));
    if (!heat) return coli__fail(COLI_E_INVALID, "coli_heat_get_info: heat is NULL");
    const coli__heat_file *f = &heat->file;
    const coli_heat_info full = {.n_layer = f->n_layer,
                                 .n_expert = f->n_expert,
                                 .n_token = f->n_token,
                                 .identity = f->identity,
                                 .counts = f->count};
    coli__struct_fill(info, &full, sizeof full);
    return COLI_OK;
}

/* Read a file and add it to the sum. */
static coli_status add(coli__heat_file *sum, const char *path)
{
    coli__heat_file f;
    COLI_TRY(coli__heat_file_read(path, &f));
    const coli_status status =
        coli__heat_file_expect(path, &f, sum->identity, sum->n_layer, sum->n_expert);
    if (status == COLI_OK) coli__heat_file_add(sum, &f);
    coli__heat_file_finish(&f);
    return status;
}

coli_status coli_heat_merge(const char *out, const char *const *files, uint32_t n_file)
{
    if (!out || !files || !n_file)
        return coli__fail(COLI_E_INVALID, "coli_heat_merge: expected out and at least one file");
    bool is_input = false;
    for (uint32_t i = 0; i < n_file; i++) {
        if (!files[i]) return coli__fail(COLI_E_INVALID, "coli_heat_merge: file %u is NULL", i);
        is_input |= strcmp(files[i], out) == 0;
    }
    if (!is_input && coli__path_exists(out))
        return coli__fail(COLI_E_EXISTS,
                          "%s: already exists; to add to it, name it as one of the files, too",
                          out);
    coli__heat_file sum;
    COLI_TRY(coli__heat_file_read(files[0], &sum));
    coli_status status = COLI_OK;
    for (uint32_t i = 1; i < n_file && status == COLI_OK; i++) status = add(&sum, files[i]);
    if (status == COLI_OK) status = coli__heat_file_write(out, &sum);
    coli__heat_file_finish(&sum);
    return status;
}

coli_status coli_heat_reset(const char *path)
{
    if (!path) return coli__fail(COLI_E_INVALID, "coli_heat_reset: path is NULL");
    coli__heat_file f, zero = {0};
    COLI_TRY(coli__heat_file_read(path, &f));
    coli_status status = coli__heat_file_init(&zero, f.identity, f.n_layer, f.n_expert);
    if (status == COLI_OK) status = coli__heat_file_write(path, &zero);
    coli__heat_file_finish(&zero);
    coli__heat_file_finish(&f);
    return status;
}

/* No counters yet, of the model in this directory. */
static coli_status of_model(const char *model_dir, coli__heat_file *out)
{
    *out = (coli__heat_file){0};
    coli__container *c;
    COLI_TRY(coli__container_open(model_dir, &c));
    const uint32_t n_layer = coli__container_n_expert_layer(c);
    const uint32_t n_expert = n_layer ? coli__container_experts(c, 0)->n_expert : 0;
    coli_status status = COLI_OK;
    for (uint32_t i = 0; i < n_layer && status == COLI_OK; i++)
        if (coli__container_experts(c, i)->n_expert != n_expert)
            status = coli__fail(COLI_E_UNSUPPORTED,
                                "%s: its layers have different numbers of experts", model_dir);
    if (status == COLI_OK)
        status = coli__heat_file_init(out, coli__container_identity(c), n_layer, n_expert);
    coli__container_close(c);
    return status;
}

coli_status coli_heat_import(const char *out, const char *file, const char *model_dir)
{
    if (!out || !file || !model_dir)
        return coli__fail(COLI_E_INVALID, "coli_heat_import: an argument is NULL");
    if (coli__path_exists(out)) return coli__fail(COLI_E_EXISTS, "%s: already exists", out);
    coli__heat_file f;
    coli_status status = of_model(model_dir, &f);
    if (status == COLI_OK) status = coli__heat_file_import(file, &f);
    if (status == COLI_OK) status = coli__heat_file_write(out, &f);
    coli__heat_file_finish(&f);
    return status;
}
