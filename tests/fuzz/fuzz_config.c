/* fuzz_config.c - config.json from anybody: parsed, claimed, described.  Whatever it says, the list
 * of tensors is either refused with a message or sane: names that fit, no zero dimension. */
#include <stdlib.h>
#include <string.h>

#include "engines/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    json_t *config = NULL;
    const coli__engine *engine = NULL;
    coli__model_spec spec = {0};
    coli_status status = coli__json_parse("config.json", (const char *)data, n_bytes, 64, &config);
    if (status == COLI_OK) status = coli__engine_for(config, &engine);
    if (status == COLI_OK) status = engine->describe(config, &spec);
    if (status != COLI_OK && *coli_error_message() == 0) abort();
    if (status != COLI_OK && (spec.tensors || spec.experts)) abort();
    for (uint32_t i = 0; i < spec.n_tensor; i++) {
        const coli__tensor_spec *t = &spec.tensors[i];
        if (!memchr(t->name, 0, sizeof t->name) || !*t->name || !t->n_out || !t->n_in) abort();
    }
    coli__model_spec_finish(&spec);
    json_decref(config);
    return 0;
}
