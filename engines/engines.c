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

void coli__model_spec_finish(coli__model_spec *spec)
{
    coli__free(spec->tensors);
    coli__free(spec->experts);
    *spec = (coli__model_spec){0};
}
