#!/bin/bash
# replan-ab.sh - what each switch of the re-plan is worth in the real tier: decode VRAM hit rate of the demo
# model on the simulated device, over eight prompts, with heat of six prompts about something else.
#
#     scripts/replan-ab.sh BUILD-DIR short|long [SHARE...]      shares in percent; default 25 37.5
#
# short: prompts of a sentence or two.  long: the same, with a text in front of them.
#
# Prints one row per switch, one column per share: the hits of all answers together, in percent, and
# how many swaps there were per token; of three runs the middle one.  Copies run while tokens are made,
# so on a busy machine a run may be a few points off; the answers are always the same.
set -euo pipefail
usage='usage: scripts/replan-ab.sh BUILD-DIR short|long [SHARE...]'
build=${1?$usage}
length=${2?$usage}
shift 2
shares=${*:-25 37.5}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

others=(
    'What is 17 + 25?' 'What is 12 times 3?' 'What is the capital of France?'
    'Write a Python function that adds two numbers.' 'What is the capital of Italy, and of Spain?'
    'Anna has 12 apples and gives 5 of them to Ben. How many apples does she have now?'
)
prompts=(
    'Tell me a story about a fox.'
    'Tell me a long story about a bear who lives in the mountains, a fox who lives in the forest, and the day they met at the river.'
    'Tell me a story about a girl named Mia who finds a small cat in the rain and takes it home to her mother and her brother.'
    'Hello! I had a long day at work today, and now I am tired. I would like to talk a little. How are you today?'
    'I want to cook something for my friends this evening. What should I make, and what do I need for it?'
    '给我讲一个关于小猫的故事。'
    'Raccontami una storia di un cane che vive in una piccola casa vicino al mare.'
    'All birds can fly. Tom is a bird. Can Tom fly? Explain step by step why.'
)

texts=(
    'A fox lived at the edge of a dark forest. Every morning she went down to the river to drink and to look for fish. One day the river was gone, and only stones lay where the water had been. The fox was sad and walked up the valley to find out why. On the way she met an old bear, who was looking for the water, too.'
    'In the mountains there was a small village. In summer the people worked in the fields, and in winter they sat by the fire and told stories. The children liked the story of the bear best. He was big and brown, he was never in a hurry, and he could talk to the fox, to the owl and to the wind.'
    'Mia was seven years old and lived with her mother and her brother in a house near the park. She liked the rain, because then the park was empty, and all its paths belonged to her. On a Sunday in autumn she put on her red coat and her boots and went out alone. Under a bench she heard a quiet sound.'
    'I got up at six, and it was still dark. The bus was late, so I came late to work, and my boss was not happy. In the morning I wrote letters, in the afternoon I sat in two meetings, and after that I helped a friend with her computer. When I came home the fridge was empty.'
    'I have rice, eggs, onions, tomatoes and a little cheese at home. My friend Tom does not eat meat, and Anna does not like onions. We are five people. I have one pan and a small pot, and the oven does not work. We would like to eat at eight, and I come home from work at six.'
    '从前有一只小猫，它住在一个小村子里。它每天早上去河边看鱼，下午在太阳下睡觉，晚上回家吃饭。有一天，它在路上看见一只小鸟。小鸟不会飞，它很冷，也很饿。小猫想了很久，不知道应该怎么办。'
    'In una piccola casa vicino al mare viveva un cane con un vecchio uomo. Ogni mattina andavano insieme sulla spiaggia e guardavano le barche. Il cane amava correre nella sabbia e giocare con i bambini. Un giorno il vecchio uomo non poteva alzarsi, e il cane era molto triste.'
    'Every cat is an animal. Some animals can swim, and some can climb trees. All cats can climb trees, but not all cats can swim. Rosa has a cat and a dog. The dog can swim, and it is older than the cat. The cat is black and sleeps all day. Rosa says that her animals are good friends.'
)

run() { # FOOTERS OPTIONS... PROMPT
    local footers=$1
    shift
    "$build/bin/coli" run --backend fake --heat "$dir/heat" -n 200 --temp 0.7 --seed 1 "$@" \
        >/dev/null 2>>"$footers"
}

once() { # SHARE OPTIONS...
    local footers=$dir/footers share=$1 i
    shift
    : >"$footers"
    for i in "${!prompts[@]}"; do
        local prompt=${prompts[i]}
        [ "$length" = short ] || prompt="${texts[i]} $prompt"
        run "$footers" --heat-readonly --vram "$share%" "$@" "$prompt"
    done
    awk '/^decode VRAM hit rate/ { gsub(/\(/, ""); hits += $7; misses += $9 }
         /swaps [0-9]/ { sub(/.*swaps /, ""); swaps += $1 }
         END { n = hits + misses
               printf "%.1f, %.1f\n", 100 * hits / n, swaps / (n / 48) }' "$footers"
}

row() { # NAME OPTIONS...
    local name=$1 share round
    shift
    printf '| %s |' "$name"
    for share in $shares; do
        printf ' %s |' "$(for round in 1 2 3; do once "$share" "$@"; done | sort -n | sed -n 2p)"
    done
    printf '\n'
}

for prompt in "${others[@]}"; do run "$dir/first" --vram 25% "$prompt"; done
printf '| hits %%, swaps per token |'
for share in $shares; do printf ' %s %% |' "$share"; done
printf '\n|---|'
for share in $shares; do printf -- '---|'; done
printf '\n'
row 'heat alone'
row '`--replan`' --replan
for with in tail prior cost hold online online,cost prior,online; do
    row "\`--replan-with $with\`" --replan-with "$with"
done
