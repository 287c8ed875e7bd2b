/* measure.h - numbers from rows of logits. */
#ifndef QWEN36_MEASURE_H
#define QWEN36_MEASURE_H

#include "open_model.h"

/* -log of the probability that softmax over all n_vocab logits gives to id; natural, in double. */
double measure_nll(const float *logits, uint32_t n_vocab, int32_t id);

/* The id of the largest of the first n_token logits; the lower one of equals. */
int32_t measure_argmax(const float *logits, uint32_t n_token);

/* --ppl: the texts of a JSONL file, one by one from an empty session.  Returns the exit code. */
int measure_perplexity(const app_settings *s, app_engine *engine);

#endif
