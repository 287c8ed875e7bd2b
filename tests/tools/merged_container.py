#!/usr/bin/env python3
"""Write a container of merged experts (docs/formats/merged.md) of a small bf16 checkpoint.

    merged_container.py CHECKPOINT OUT [--bits 4|8] [--group 0|32|64|...] [--down-bits 8 --down-group G]

Needs numpy.  An implementation of the format that is not the library's: what it writes goes through
`coli convert OUT ...` by hand, and the result can be compared with a conversion of the checkpoint itself.
"""
import argparse
import json
import pathlib
import shutil
import struct

import numpy as np


def read_checkpoint(path):
    data = path.read_bytes()
    (n_header,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + n_header])
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n_header + x for x in t["data_offsets"])
        if t["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
            values = bits.view("<f4")
        else:
            values = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
        tensors[name] = values.astype(np.float32).reshape(t["shape"])
    return tensors


def quantise(w, bits, group):
    """Codes of a matrix, and its scales per row and group, row by row."""
    n_out, n_in = w.shape
    width = group or n_in
    n_group = -(-n_in // width)
    padded = np.zeros((n_out, n_group * width), np.float32)
    padded[:, :n_in] = w
    groups = padded.reshape(n_out, n_group, width)
    most = np.float32(2 ** (bits - 1) - 1)
    scales = np.maximum(np.abs(groups).max(axis=2), np.float32(1e-12)) / most
    codes = np.clip(np.rint(groups / scales[:, :, None]), -most - 1, most)
    return codes.reshape(n_out, -1)[:, :n_in].astype(np.int8), scales.astype("<f4")


def pack(codes, bits):
    flat = codes.reshape(-1)
    if bits == 8:
        return flat.tobytes()
    halves = flat.astype(np.uint8) & 15  # two's complement
    return (halves[0::2] | halves[1::2] << 4).tobytes()


def record(gate, up, down, args):
    down_bits = args.down_bits or args.bits
    down_group = args.down_group if args.down_bits else args.group
    parts = [quantise(gate, args.bits, args.group), quantise(up, args.bits, args.group),
             quantise(down, down_bits, down_group)]
    bits = [args.bits, args.bits, down_bits]
    return (b"".join(pack(c, b) for (c, _), b in zip(parts, bits)),
            b"".join(s.tobytes() for _, s in parts))


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, data in tensors:
            f.write(data)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("checkpoint", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--bits", type=int, choices=(4, 8), default=4)
    p.add_argument("--group", type=int, default=0)
    p.add_argument("--down-bits", type=int, choices=(8,), default=0)
    p.add_argument("--down-group", type=int, default=0)
    args = p.parse_args()
    args.out.mkdir()
    original = json.loads((args.checkpoint / "config.json").read_text())
    config = original.get("text_config", original)
    out, n_expert = {}, config["num_experts"]
    weights = {name.replace("model.language_model.", "model."): w for name, w in
               read_checkpoint(args.checkpoint / "model.safetensors").items()}
    for name, w in weights.items():
        if name.startswith(("mtp.", "model.visual.")) or ".mlp.experts." in name:
            continue
        layer = name.split(".")[2] if name.startswith("model.layers.") else "globals"
        out.setdefault(layer, []).append((name, "F16", list(w.shape), w.astype("<f2").tobytes()))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts."
        fused = weights.get(prefix + "gate_up_proj")
        for e in range(n_expert):
            if fused is None:
                parts = [weights[f"{prefix}{e}.{p}_proj.weight"] for p in ("gate", "up", "down")]
            else:
                half = fused.shape[1] // 2
                parts = [fused[e, :half], fused[e, half:], weights[prefix + "down_proj"][e]]
            codes, scales = record(*parts, args)
            kind = "I8" if args.bits == 8 else "U8"
            out[str(layer)] += [(f"{prefix}{e}.merged_weight", kind, [len(codes)], codes),
                                (f"{prefix}{e}.merged_weight.qs", "F32", [len(scales) // 4], scales)]
    for layer, tensors in out.items():
        number = layer if layer == "globals" else f"{int(layer):05d}"
        write_safetensors(args.out / f"model-{number}.safetensors", tensors)
    (args.out / "config.json").write_text(json.dumps(config, indent=2))
    meta = {"hidden": config["hidden_size"], "n_layers": config["num_hidden_layers"],
            "num_experts": n_expert, "topk": config["num_experts_per_tok"],
            "moe_inter": config["moe_intermediate_size"], "expert_gs": args.group,
            "expert_down_gs": args.down_group, "ebits": args.bits}
    (args.out / "qwen36_meta.json").write_text(json.dumps(meta))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json",
                 "chat_template.jinja"):
        if (args.checkpoint / name).exists():
            shutil.copy(args.checkpoint / name, args.out / name)


if __name__ == "__main__":
    main()
