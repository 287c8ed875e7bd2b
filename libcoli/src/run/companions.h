/* companions.h - the small files that stand beside the weights, in a checkpoint as in a container, and
 * say how to talk with the model: tokenizer.json, tokenizer_config.json, generation_config.json. */
#ifndef COLI_RUN_COMPANIONS_H
#define COLI_RUN_COMPANIONS_H

#include "../../include/coli/coli.h"
#include "../model/json.h"
#include "../model/pack.h"
#include "../model/tokenizer.h"

enum { COLI_MAX_STOP_ID = 16 };

typedef struct coli__companions {
    coli__tok *tok; // owned; NULL without a tokenizer.json: then only ids go in and out
    int32_t think_open_id, think_close_id; // -1 when the vocabulary has none
    coli_sampling sampling;                // generation_config.json over the neutral values
    int32_t stop_ids[COLI_MAX_STOP_ID];
    uint32_t n_stop_id;
} coli__companions;

/* Read what there is in `dir`; each file is optional, and an error names the one that is bad.  config is
 * the model's config.json, which names the end of a turn where generation_config.json is absent;
 * n_vocab its rows of logits. */
coli_status coli__companions_read(const char *dir, const json_t *config, uint32_t n_vocab,
                                  coli__companions *out);
/* The same of files in memory, as they stand in a pack. */
coli_status coli__companions_of(const coli__pack_files *files, const json_t *config,
                                uint32_t n_vocab, coli__companions *out);
void coli__companions_finish(coli__companions *c); // accepts a zeroed struct

extern const coli_sampling coli__sampling_neutral;

/* Whether every field is in its range; E_INVALID lists them. */
coli_status coli__sampling_check(const coli_sampling *p);

#endif
