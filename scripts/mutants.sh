#!/usr/bin/env bash
# Does the reference fixture notice the mistakes that people make with this family?  Each mutant is one
# such mistake in a copy of the tree; tests/golden/qwen36_fixture.c must fail on it.
#
#     scripts/mutants.sh            all of them, about two minutes on two cores
#     scripts/mutants.sh decay      those whose name contains "decay"
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

engine=engines/qwen36/qwen36.c
kernels=libcoli/src/math/kernels_float.inc.h
moe=libcoli/src/moe
route=libcoli/src/moe/route.c
rope=libcoli/src/math/rope.c

# name | file | text (fixed string, first occurrence) | replacement
mutants=$(cat <<EOF
gated norm with 1+w|$engine|k->rmsnorm(o, n->norm, 0,|k->rmsnorm(o, n->norm, 1,
input norm without 1|$engine|w, 1, d->d_model, d->eps,|w, 0, d->d_model, d->eps,
q norm without 1|$engine|a->q_norm, 1,|a->q_norm, 0,
query and gate as halves|$engine|float *query = q + 2 * (size_t)h * d->d_head;|float *query = q + (size_t)h * d->d_head;
key head by modulo|$engine|for (uint32_t vh = head * r; vh < (head + 1) * r; vh++)|for (uint32_t vh = head; vh < d->n_v_head; vh += d->n_k_head)
gate with silu|$kernels|y[i] = y[i] * coli_sigmoid(gate[i]);|y[i] = y[i] * coli_silu(gate[i]);
read before the update|$kernels|decay * by_q[b] + kq * by_k[b]|decay * by_q[b]
decay after the prediction|$kernels|load(v + VW * b) - decay * by_k[b]|load(v + VW * b) - by_k[b]
beta on v only|$kernels|beta * (load(v + VW * b) - decay * by_k[b])|beta * load(v + VW * b) - decay * by_k[b]
state not decayed|$kernels|store(s, decay * load(s) + k[i] * by_k[b]);|store(s, load(s) + k[i] * by_k[b]);
taps reversed|$engine|w[(size_t)(s.first + c) * d->n_tap + tap]|w[(size_t)(s.first + c) * d->n_tap + d->n_tap - 1 - tap]
convolution without SiLU|$kernels|y[c0 + c] = coli_silu(sum[c])|y[c0 + c] = sum[c]
l2 norm as a mean|$engine|k->l2norm(key, d->d_k, 1e-6f, 1);|k->l2norm(key, d->d_k, 1e-6f * (float)d->d_k, 1);
query not scaled|$engine|k->l2norm(q, d->d_k, 1e-6f, coli_rsqrt((float)d->d_k));|k->l2norm(q, d->d_k, 1e-6f, 1);
dt_bias left out|$engine|coli_softplus(a[vh] + n->dt_bias[vh])|coli_softplus(a[vh])
rotate the whole head|engines/qwen36/qwen36_spec.c|d->d_rot = (uint32_t)(d->d_head * factor);|d->d_rot = d->d_head;
interleaved rotary pairs|$rope|float *low = head, *high = head + n_rot / 2;|float *low = head, *high = head + 1;
rotation backwards|$rope|low[i] = a * cosine[i] - b * sine[i];|low[i] = a * cosine[i] + b * sine[i];
weights not renormalised|$route|const float sum = k->softmax_sum(w, n_used);|const float sum = 1.05f * k->softmax_sum(w, n_used);
shared gate missing|$moe/moe_route.c|m->shared_w[t] = coli_sigmoid(m->shared_w[t]);|m->shared_w[t] = 1;
up and gate swapped|$moe/moe_products.c|m->k->silu_mul(g + i * n, u + i * n, n, out);|m->k->silu_mul(u + i * n, g + i * n, n, out);
scores not scaled|$engine|.scale = coli_rsqrt((float)d->d_head),|.scale = 1,
position off by one|$engine|coli__rope_table(s->m->rope_freq, d->d_rot, s->pos,|coli__rope_table(s->m->rope_freq, d->d_rot, s->pos / 2,
EOF
)

git -C "$top" ls-files -z --cached --others --exclude-standard | (cd "$top" && xargs -0 cp --parents -t "$work")
cmake -S "$work" -B "$work/build" -DCMAKE_BUILD_TYPE=Release > "$work/log"
build() { cmake --build "$work/build" --target qwen36_fixture -j "$(nproc)" > "$work/log" 2>&1; }
run() { "$work/build/bin/qwen36_fixture" > "$work/log" 2>&1; }
build && run || { echo "the fixture fails without any mutation:"; tail "$work/log"; exit 1; }

alive=0 killed=0
while IFS='|' read -r name file from to; do
    [[ $name == *"${1:-}"* ]] || continue
    cp "$work/$file" "$work/original"
    FROM=$from TO=$to perl -0pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/ or die "not found\n"' "$work/$file" ||
        { echo "STALE   $name: the text is no longer in $file"; alive=$((alive + 1)); continue; }
    if ! build; then echo "STALE   $name: does not compile"; alive=$((alive + 1))
    elif run; then echo "ALIVE   $name"; alive=$((alive + 1))
    else echo "killed  $name"; killed=$((killed + 1)); fi
    cp "$work/original" "$work/$file"
done <<< "$mutants"
echo "$killed killed, $alive alive or stale"
[[ $alive == 0 && $killed -gt 0 ]]
