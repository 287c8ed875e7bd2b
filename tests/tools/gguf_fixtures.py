#!/usr/bin/env python3
"""Write tests/fixtures/gguf: GGUF files made by the `gguf` package, and what they hold.

    pip install gguf==0.19.0 numpy safetensors
    tests/tools/gguf_fixtures.py tests/fixtures

kinds.gguf           one tensor (3, 512) of each kind, its blocks random bytes with sane scales
kinds.safetensors    the same numbers, as the package's own dequantisation gives them
tiny-*-of-*.gguf     the first four layers of qwen36-tiny-a in BF16 and F32, in three parts
tiny-mix.gguf        the same in Q8_0, Q4_0, F16 and F32, with a tokenizer
k.gguf               a random model whose rows are wide enough for the kinds with blocks of 256
iq.gguf              the same for the kinds with codebooks, of base 3 and NVFP4, spelled otherwise
../../fuzz/corpus/gguf/model   a whole model in 37 KB, for the fuzzer to begin with
digests.json         per file: of each tensor under its checkpoint name and in checkpoint order, FNV-1a
                     of its f32 bytes, again from the package's dequantisation

The order and form of a GGUF's tensors are written here once more, from the checkpoint's side: that the
reader undoes exactly this is what the test checks.
"""
import json
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

SEED = 8
KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
         "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S",
         "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "NVFP4"]
# where a block's f16 numbers begin
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
          "MXFP4": [], "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
          "IQ3_XXS": [0], "IQ3_S": [0], "TQ1_0": [52], "TQ2_0": [64], "NVFP4": []}
# of the numbers such a scale multiplies, so that weights come out near 1
LARGEST = {"Q2_K": 45, "Q3_K": 128, "Q4_K": 900, "Q5_K": 1900, "Q6_K": 4000, "IQ4_NL": 127,
           "IQ4_XS": 4000, "Q8_0": 127, "Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "IQ1_S": 17,
           "IQ1_M": 17, "IQ2_XXS": 166, "IQ2_XS": 166, "IQ2_S": 166, "IQ3_XXS": 480, "IQ3_S": 465,
           "TQ1_0": 1, "TQ2_0": 1}


def halves(rng, kind, scale, n, edges):
    size = scale / LARGEST[kind] * rng.uniform(0.5, 1.5, n)
    half = (size * rng.choice([-1, 1], n)).astype(np.float16)
    if edges:
        half[:4] = np.array([0, 6e-8, -6e-5, 1000], np.float16)  # subnormal ones, too
    return half


def random_blocks(rng, kind, shape, scale=1.0, edges=False):
    """Bytes of a tensor of this shape: random codes, f16 scales of either sign."""
    q = Q[kind]
    n_elem, n_bytes = gguf.GGML_QUANT_SIZES[q]
    if kind in ("F32", "F16", "BF16"):
        return quantize(rng.normal(0, scale, shape).astype(np.float32), q)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // n_elem, n_bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at:at + 2] = halves(rng, kind, scale, len(blocks), edges).view(np.uint8).reshape(-1, 2)
    if kind == "IQ1_M":  # a nibble of d above each of four numbers of twelve bits
        d = halves(rng, kind, scale, len(blocks), edges).view(np.uint16)
        words = blocks[:, 48:].copy().view(np.uint16) & 0xFFF
        for i in range(4):
            words[:, i] |= (d >> 4 * i & 15) << 12
        blocks[:, 48:] = words.view(np.uint8)
    if kind == "NVFP4":  # numbers of up to 6 times an e4m3 of 2^-11 to 2^-9
        blocks[:, :4] = rng.integers(1, 8, (len(blocks), 4))
        if edges:
            blocks[:, :4] = rng.integers(0, 256, (len(blocks), 4))
            blocks[:2, :4] = [[0, 0x7F, 0x80, 0xFF], [7, 8, 0x7E, 0x78]]
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(121, 127, len(blocks))
        if edges:
            blocks[:4, 0] = [0, 1, 2, 200]
    return blocks.reshape(*shape[:-1], shape[-1] // n_elem * n_bytes)


def write_kinds(out):
    rng = np.random.default_rng(SEED)
    writer = gguf.GGUFWriter(out / "kinds.gguf", "kinds")
    expected = {}
    for kind in KINDS:
        data = random_blocks(rng, kind, (3, 512), edges=True)
        expected[kind] = dequantize(data, Q[kind]).astype(np.float32)
        raw = None if kind in ("F32", "F16") else Q[kind]
        writer.add_tensor(kind, data, raw_dtype=raw)
    finish(writer)
    save_file(expected, out / "kinds.safetensors")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# -- a model ---------------------------------------------------------------------------------------

def read_checkpoint(path):
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw, np.float32)
        tensors[name.removeprefix("model.")] = x.reshape(t["shape"])
    return tensors


def tile(x, axis, begin, width, n_k, n_v):
    """Value heads from groups by key head to the order in which they take turns."""
    x = np.moveaxis(x, axis, 0)
    heads = x[begin:].reshape(n_k, n_v // n_k, width, *x.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(np.concatenate([x[:begin], heads.reshape(-1, *x.shape[1:])]), 0, axis)


def untile(x, axis, begin, width, n_k, n_v):
    x = np.moveaxis(x, axis, 0)
    heads = x[begin:].reshape(n_v // n_k, n_k, width, *x.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(np.concatenate([x[:begin], heads.reshape(-1, *x.shape[1:])]), 0, axis)


def heads_of(name, c):
    """(axis, begin, width) of the value heads in a checkpoint's tensor."""
    d_k, d_v, n_k = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_num_key_heads"]
    return {"in_proj_qkv.weight": (0, 2 * n_k * d_k, d_v), "in_proj_z.weight": (0, 0, d_v),
            "in_proj_b.weight": (0, 0, 1), "in_proj_a.weight": (0, 0, 1), "A_log": (0, 0, 1),
            "dt_bias": (0, 0, 1), "conv1d.weight": (0, 2 * n_k * d_k, d_v),
            "out_proj.weight": (1, 0, d_v)}.get(name.split("linear_attn.")[-1])


NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight", "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.experts.gate_proj": "ffn_gate_exps.weight", "mlp.experts.up_proj": "ffn_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
}


def gguf_name(name):
    whole = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{NAMES[rest]}"


def is_folded_norm(name):
    return name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")


def to_gguf(name, x, c):
    if name.endswith("conv1d.weight"):
        x = x.reshape(x.shape[0], x.shape[-1])
    heads = heads_of(name, c) if "linear_attn." in name else None
    if heads:
        x = tile(x, *heads, c["linear_num_key_heads"], c["linear_num_value_heads"])
    if name.endswith("A_log"):
        x = -np.exp(x)
    if is_folded_norm(name):
        x = x + np.float32(1)
    return np.ascontiguousarray(x.astype(np.float32))


def to_checkpoint(name, x, c):
    if is_folded_norm(name):
        x = x - np.float32(1)
    if name.endswith("A_log"):
        x = np.log(-x.astype(np.float64)).astype(np.float32)
    heads = heads_of(name, c) if "linear_attn." in name and c.get("in_turns", True) else None
    if heads:
        x = untile(x, *heads, c["linear_num_key_heads"], c["linear_num_value_heads"])
    return np.ascontiguousarray(x)


def fnv(x):
    h = 0xCBF29CE484222325
    for byte in x.astype(np.float32).tobytes():
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return f"{h:016x}"


def write_metadata(w, c, interval):
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * rope["partial_rotary_factor"]))
    w.add_rope_dimension_sections(rope["mrope_section"] + [0])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    if interval:
        w.add_full_attention_interval(interval)


def write_tokenizer(w, n_vocab):
    """The tokens and merges of tests/support/small_tokenizer.h, and padding up to n_vocab."""
    chars = [chr(i) for i in range(0x21, 0x144) if not (0x7E < i < 0xA1 or i == 0xAD)]
    tokens = chars + ["he", "ll", "hell", "hello", "\u0120hello", "<|end|>", "nd", "<think>", "<think>!",
                      "<|e", "<|", "<|end", "|>"]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[261] = gguf.TokenType.CONTROL
    types[263] = types[264] = gguf.TokenType.USER_DEFINED
    while len(tokens) < n_vocab:
        tokens.append(f"[PAD{len(tokens)}]")
        types.append(gguf.TokenType.UNUSED)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(["h e", "l l", "he ll", "hell o", "\u0120 hello", "n d", "< |", "<| e", "<|e nd",
                        "| >", "<|end |>"])
    w.add_eos_token_id(261)
    w.add_pad_token_id(262)
    w.add_chat_template("<|im_start|> enable_thinking reasoning_content <tool_response> <function= "
                        "preserve_thinking")


def add(w, digests, name, data, kind, c):
    raw = None if kind in ("F32", "F16") else Q[kind]
    w.add_tensor(gguf_name(name), data, raw_dtype=raw)
    digests[name] = fnv(to_checkpoint(name, dequantize(data, Q[kind]).astype(np.float32), c))


def vector_or_small(name, x):
    return x.ndim == 1 or "conv1d" in name or name.endswith("norm.weight")


def write_tiny(fixtures, out, digests):
    c = json.loads((fixtures / "qwen36-tiny-a/config.json").read_text())
    c["num_hidden_layers"] = 4
    tensors = {}
    for name, x in read_checkpoint(fixtures / "qwen36-tiny-a/model.safetensors").items():
        if name.startswith("layers.") and int(name.split(".")[1]) >= 4 or name.startswith("mtp"):
            continue
        if name.endswith("experts.gate_up_proj"):
            half = x.shape[1] // 2
            tensors[name.replace("gate_up", "gate")] = x[:, :half]
            tensors[name.replace("gate_up", "up")] = x[:, half:]
        else:
            tensors[name] = x

    w = gguf.GGUFWriter(out / "tiny.gguf", "qwen35moe", split_max_tensors=30)
    write_metadata(w, c, 4)
    own = digests.setdefault("tiny-00001-of-00003.gguf", {})
    for name, x in sorted(tensors.items()):
        x = to_gguf(name, x, c)
        kind = "F32" if vector_or_small(name, x) or "shared_expert_gate" in name else "BF16"
        add(w, own, name, quantize(x, Q[kind]), kind, c)
    finish(w)

    w = gguf.GGUFWriter(out / "tiny-mix.gguf", "qwen35moe")
    w.add_custom_alignment(64)
    write_metadata(w, c, 4)
    write_tokenizer(w, c["vocab_size"])
    own = digests.setdefault("tiny-mix.gguf", {})
    for name, x in sorted(tensors.items()):
        x = to_gguf(name, x, c)
        if vector_or_small(name, x) or "mlp.gate." in name or "shared_expert_gate" in name:
            kind = "F32"
        elif x.shape[-1] % 32:
            kind = "F16"
        else:
            kind = "Q4_0" if "experts" in name else "Q8_0"
        add(w, own, name, quantize(x, Q[kind]), kind, c)
    finish(w)


def write_k(out, digests):
    """Random blocks of every kind; all weights as large as a model's are."""
    rng = np.random.default_rng(SEED + 1)
    c = {"max_position_embeddings": 512, "hidden_size": 256, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-6,
         "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                             "mrope_section": [2, 1, 1]},
         "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
         "shared_expert_intermediate_size": 32, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32}
    w = gguf.GGUFWriter(out / "k.gguf", "qwen35moe")
    write_metadata(w, c, 2)
    own = digests.setdefault("k.gguf", {})
    D, E, F = 256, 4, 32

    def matrix(name, kind, *shape):
        add(w, own, name, random_blocks(rng, kind, shape, scale=2.0 / shape[-1] ** 0.5), kind, c)

    def vector(name, n, low, high):
        shape = n if isinstance(n, tuple) else (n,)
        add(w, own, name, rng.uniform(low, high, shape).astype(np.float32), "F32", c)

    matrix("embed_tokens.weight", "Q6_K", 96, D)
    for i in range(2):
        p = f"layers.{i}."
        vector(p + "input_layernorm.weight", D, 0.6, 1.4)
        vector(p + "post_attention_layernorm.weight", D, 0.6, 1.4)
        if i == 0:
            matrix(p + "linear_attn.in_proj_qkv.weight", "Q5_K", 192, D)
            matrix(p + "linear_attn.in_proj_z.weight", "Q4_K", 128, D)
            matrix(p + "linear_attn.in_proj_b.weight", "F32", 4, D)
            matrix(p + "linear_attn.in_proj_a.weight", "F16", 4, D)
            vector(p + "linear_attn.conv1d.weight", (192, 4), -1, 1)
            vector(p + "linear_attn.A_log", 4, -8, -0.2)
            vector(p + "linear_attn.dt_bias", 4, -4, 1)
            vector(p + "linear_attn.norm.weight", 32, 0.6, 1.4)
            matrix(p + "linear_attn.out_proj.weight", "Q8_0", D, 128)
        else:
            matrix(p + "self_attn.q_proj.weight", "Q3_K", 128, D)
            matrix(p + "self_attn.k_proj.weight", "Q5_0", 32, D)
            matrix(p + "self_attn.v_proj.weight", "Q4_1", 32, D)
            matrix(p + "self_attn.o_proj.weight", "IQ4_NL", D, 64)
            vector(p + "self_attn.q_norm.weight", 32, 0.6, 1.4)
            vector(p + "self_attn.k_norm.weight", 32, 0.6, 1.4)
        matrix(p + "mlp.gate.weight", "F32", E, D)
        matrix(p + "mlp.shared_expert.gate_proj.weight", "Q2_K", F, D)
        matrix(p + "mlp.shared_expert.up_proj.weight", "Q5_1", F, D)
        matrix(p + "mlp.shared_expert.down_proj.weight", "MXFP4", D, F)
        vector(p + "mlp.shared_expert_gate.weight", D, -1, 1)
        if i == 0:
            matrix(p + "mlp.experts.gate_proj", "Q4_K", E, F, D)
            matrix(p + "mlp.experts.up_proj", "IQ4_XS", E, F, D)
            matrix(p + "mlp.experts.down_proj", "MXFP4", E, D, F)
        else:
            matrix(p + "mlp.experts.gate_up_proj", "Q4_K", E, 2 * F, D)
            matrix(p + "mlp.experts.down_proj", "Q4_0", E, D, F)
    vector("norm.weight", D, 0.6, 1.4)  # no output.weight: the head is the embedding
    finish(w)


def write_iq(out, digests):
    """What k.gguf does not have, and the other ways to say what layers are."""
    rng = np.random.default_rng(SEED + 2)
    D, E, F = 256, 3, 64
    c = {"max_position_embeddings": 512, "hidden_size": D, "num_hidden_layers": 3,
         "num_attention_heads": [2, 2, 2], "num_key_value_heads": [0, 1, 1], "head_dim": 128,
         "rms_norm_eps": 1e-6,
         "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                             "mrope_section": [8, 4, 4]},
         "num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": F,
         "shared_expert_intermediate_size": F, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 64,
         "in_turns": False}
    w = gguf.GGUFWriter(out / "iq.gguf", "qwen35moe")
    write_metadata(w, c, None)
    w.add_nextn_predict_layers(1)
    w.add_array("qwen35moe.attention.recurrent_layers", [True, False, False])
    w.add_bool("qwen35moe.ssm.v_head_reordered", False)
    own = digests.setdefault("iq.gguf", {})

    def matrix(name, kind, *shape, scales=None):
        data = random_blocks(rng, kind, shape, scale=2.0 / shape[-1] ** 0.5)
        w.add_tensor(gguf_name(name), data, raw_dtype=None if kind in ("F32", "F16") else Q[kind])
        x = dequantize(data, Q[kind]).astype(np.float32)
        if scales is not None:
            scales = np.array(scales, np.float32)
            beside = gguf_name(name).removesuffix(".weight")
            w.add_tensor(beside + ".scale", scales)
            w.add_tensor(beside + ".input_scale", np.float32([0.25] * len(scales)))
            x = x * scales.reshape(-1, *[1] * (x.ndim - 1))
        own[name] = fnv(to_checkpoint(name, x, c))

    def vector(name, n, low, high):
        shape = n if isinstance(n, tuple) else (n,)
        x = rng.uniform(low, high, shape).astype(np.float32)
        # one writer has no ".bias" there
        w.add_tensor(gguf_name(name).replace("ssm_dt.bias", "ssm_dt"), x)
        own[name] = fnv(to_checkpoint(name, x, c))

    matrix("embed_tokens.weight", "IQ3_S", 96, D)
    matrix("lm_head.weight", "NVFP4", 96, D, scales=[1.5])
    for i in range(2):
        p = f"layers.{i}."
        vector(p + "input_layernorm.weight", D, 0.6, 1.4)
        vector(p + "post_attention_layernorm.weight", D, 0.6, 1.4)
        if i == 0:
            matrix(p + "linear_attn.in_proj_qkv.weight", "IQ2_XS", 320, D)
            matrix(p + "linear_attn.in_proj_z.weight", "IQ3_XXS", 256, D)
            matrix(p + "linear_attn.in_proj_b.weight", "F32", 4, D)
            matrix(p + "linear_attn.in_proj_a.weight", "F16", 4, D)
            vector(p + "linear_attn.conv1d.weight", (320, 4), -1, 1)
            vector(p + "linear_attn.A_log", 4, -8, -0.2)
            vector(p + "linear_attn.dt_bias", 4, -4, 1)
            vector(p + "linear_attn.norm.weight", 64, 0.6, 1.4)
            matrix(p + "linear_attn.out_proj.weight", "TQ2_0", D, 256)
        else:
            matrix(p + "self_attn.q_proj.weight", "IQ1_S", 512, D)
            matrix(p + "self_attn.k_proj.weight", "IQ2_XXS", 128, D)
            matrix(p + "self_attn.v_proj.weight", "NVFP4", 128, D, scales=[0.8125])
            matrix(p + "self_attn.o_proj.weight", "IQ3_S", D, 256)
            vector(p + "self_attn.q_norm.weight", 128, 0.6, 1.4)
            vector(p + "self_attn.k_norm.weight", 128, 0.6, 1.4)
        matrix(p + "mlp.gate.weight", "F32", E, D)
        matrix(p + "mlp.shared_expert.gate_proj.weight", "IQ2_S", F, D)
        matrix(p + "mlp.shared_expert.up_proj.weight", "IQ1_M", F, D)
        matrix(p + "mlp.shared_expert.down_proj.weight", "NVFP4", D, F, scales=[1.0625])
        vector(p + "mlp.shared_expert_gate.weight", D, -1, 1)
        if i == 0:
            matrix(p + "mlp.experts.gate_proj", "NVFP4", E, F, D, scales=[1.25, 0.7, 1.1])
            matrix(p + "mlp.experts.up_proj", "TQ1_0", E, F, D)
            matrix(p + "mlp.experts.down_proj", "NVFP4", E, D, F, scales=[0.9])
        else:
            matrix(p + "mlp.experts.gate_up_proj", "NVFP4", E, 2 * F, D, scales=[1.25, 0.7, 1.1])
            matrix(p + "mlp.experts.down_proj", "NVFP4", E, D, F)
    vector("norm.weight", D, 0.6, 1.4)
    w.add_tensor("blk.2.nextn.enorm.weight", np.ones(D, np.float32))
    w.add_tensor("v.blk.0.ln1.weight", np.ones(8, np.float32))
    w.add_tensor("mm.0.bias", np.ones(8, np.float32))
    finish(w)


def write_seed(out):
    """One layer of each sort, as small as kinds with blocks of 32 allow."""
    rng = np.random.default_rng(SEED + 3)
    D, E, F = 64, 2, 32
    c = {"max_position_embeddings": 64, "hidden_size": D, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": [0, 1], "head_dim": 16, "rms_norm_eps": 1e-6,
         "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                             "mrope_section": [1, 1, 0]},
         "num_experts": E, "num_experts_per_tok": 1, "moe_intermediate_size": F,
         "shared_expert_intermediate_size": F, "linear_conv_kernel_dim": 2, "linear_key_head_dim": 4,
         "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 8}
    w = gguf.GGUFWriter(out / "model", "qwen35moe")
    write_metadata(w, c, None)

    def put(name, kind, *shape):
        x = random_blocks(rng, kind, shape)
        if name.endswith("A_log"):
            x = -np.abs(x)
        w.add_tensor(gguf_name(name), x, raw_dtype=None if kind in ("F32", "F16") else Q[kind])

    put("embed_tokens.weight", "Q4_0", 4, D)
    for i in range(2):
        p = f"layers.{i}."
        put(p + "input_layernorm.weight", "F32", D)
        put(p + "post_attention_layernorm.weight", "F32", D)
        if i == 0:
            put(p + "linear_attn.in_proj_qkv.weight", "MXFP4", 48, D)
            put(p + "linear_attn.in_proj_z.weight", "NVFP4", 32, D)
            put(p + "linear_attn.in_proj_b.weight", "Q8_0", 4, D)
            put(p + "linear_attn.in_proj_a.weight", "BF16", 4, D)
            put(p + "linear_attn.conv1d.weight", "F32", 48, 2)
            put(p + "linear_attn.A_log", "F32", 4)
            put(p + "linear_attn.dt_bias", "F32", 4)
            put(p + "linear_attn.norm.weight", "F32", 8)
            put(p + "linear_attn.out_proj.weight", "Q5_0", D, 32)
            w.add_tensor("blk.0.attn_gate.scale", np.float32([0.5]))
        else:
            put(p + "self_attn.q_proj.weight", "IQ4_NL", 64, D)
            put(p + "self_attn.k_proj.weight", "Q4_1", 16, D)
            put(p + "self_attn.v_proj.weight", "Q5_1", 16, D)
            put(p + "self_attn.o_proj.weight", "Q4_0", D, 32)
            put(p + "self_attn.q_norm.weight", "F32", 16)
            put(p + "self_attn.k_norm.weight", "F32", 16)
        put(p + "mlp.gate.weight", "F32", E, D)
        put(p + "mlp.shared_expert.gate_proj.weight", "Q4_0", F, D)
        put(p + "mlp.shared_expert.up_proj.weight", "Q4_0", F, D)
        put(p + "mlp.shared_expert.down_proj.weight", "Q4_0", D, F)
        put(p + "mlp.shared_expert_gate.weight", "F32", D)
        put(p + "mlp.experts.gate_up_proj", "Q4_0", E, 2 * F, D)
        put(p + "mlp.experts.down_proj", "Q4_0", E, D, F)
    put("norm.weight", "F32", D)
    finish(w)


def main():
    fixtures = Path(sys.argv[1])
    out = fixtures / "gguf"
    out.mkdir(exist_ok=True)
    digests = {}
    write_kinds(out)
    write_tiny(fixtures, out, digests)
    write_k(out, digests)
    write_iq(out, digests)
    write_seed(fixtures.parent / "fuzz/corpus/gguf")
    (out / "digests.json").write_text(json.dumps(digests, indent=0) + "\n")


if __name__ == "__main__":
    main()
