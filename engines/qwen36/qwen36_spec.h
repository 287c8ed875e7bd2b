/* qwen36_spec.h - the dimensions of a Qwen3.5/3.6-MoE text model, checked once. */
#ifndef COLI_QWEN36_SPEC_H
#define COLI_QWEN36_SPEC_H

#include "../engine.h"

enum { QWEN36_MAX_LAYER = 512 };

typedef struct qwen36_dims {
    uint32_t n_layer, d_model, n_vocab, n_ctx_max;
    bool full_attention[QWEN36_MAX_LAYER]; // else gated DeltaNet
    float eps;
    bool tied; // lm_head is the embedding

    uint32_t n_head, n_kv_head, d_head, d_rot; // gated attention; d_rot: rotated part of a head
    double rope_theta;

    uint32_t n_k_head, n_v_head, d_k, d_v, n_tap; // DeltaNet
    uint32_t d_qkv; // convolved channels: 2*n_k_head*d_k + n_v_head*d_v

    uint32_t n_expert, n_expert_used, d_ff, d_ff_shared;
} qwen36_dims;

bool qwen36_claims(const json_t *config);
/* E_FORMAT for a value that is missing or out of range, E_UNSUPPORTED for one that this engine does
 * not compute. */
coli_status qwen36_read_dims(const json_t *config, qwen36_dims *out);
coli_status qwen36_describe(const json_t *config, coli__model_spec *out);

#endif
