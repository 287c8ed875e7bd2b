/* engines.c - the one file that knows every model family. */
#include "engine.h"

#include <string.h>

static const coli__engine *const engines[] = {&coli__engine_qwen36};
enum { N_ENGINE = sizeof engines / sizeof engines[0] };

coli_status coli__engine_for(const json_t *config, const coli__engine **out)
{
    *out = NULL;
    if (!json_is_object(config)) return coli__fail(COLI_E_FORMAT, "config.json: not a JSON object");
    for (size_t i = 0; i < N_ENGINE; i++)
        if (engines[i]->claims(config)) {
            *out = engines[i];
            return COLI_OK;
        }
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return coli__fail(COLI_E_UNSUPPORTED,
                      "config.json: model_type %s is not a known family (known: qwen3_5_moe)",
                      type ? type : "(missing)");
}

const coli__engine *coli__engine_by_name(const char *name)
{
    for (size_t i = 0; i < N_ENGINE; i++)
        if (strcmp(engines[i]->name, name) == 0) return engines[i];
    return NULL;
}

/* Dimensions may follow from fractions, whatever the host program has set for its floats. */
coli_status coli__engine_describe(const json_t *config, const char **name, coli__model_spec *out)
{
    const coli__engine *engine;
    *name = NULL;
    *out = (coli__model_spec){0};
    COLI_TRY(coli__engine_for(config, &engine));
    *name = engine->name;
    const coli__fp fp = coli__fp_enter();
    const coli_status status = engine->describe(config, out);
    coli__fp_leave(fp);
    return status;
}

coli_status coli__engine_gguf(const coli__gguf *g, const coli__gguf_family **out)
{
    static const coli__gguf_family *const families[] = {&coli__gguf_qwen36};
    coli__gguf_text name;
    *out = NULL;
    COLI_TRY(coli__gguf_text_or_null(g, "general.architecture", &name));
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const char *known = families[i]->architecture;
        if (name.n_bytes != strlen(known) || memcmp(name.data, known, strlen(known)) != 0) continue;
        *out = families[i];
        return COLI_OK;
    }
    return coli__fail(COLI_E_UNSUPPORTED,
                      "%s: key general.architecture: \"%.*s\" is not a known family (known: "
                      "qwen35moe)",
                      coli__gguf_path(g), (int)(name.n_bytes < 40 ? name.n_bytes : 40),
                      name.data ? name.data : "");
}
