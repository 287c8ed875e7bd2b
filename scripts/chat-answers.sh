#!/bin/bash
# chat-answers.sh - ask the demo model two questions through the README's chat command and check the
# answers.
#
#     scripts/chat-answers.sh questions | COMMAND 2>&1 | scripts/chat-answers.sh check
#
# check passes its input on and succeeds when Paris and then 42 stand in it.  It looks at answers
# only: not at build output before them ("Found libpcre2-8 10.42"), not at footers with numbers of
# their own.
set -euo pipefail
case ${1-} in
questions) printf '%s\n' 'What is the capital of France?' 'What is 17 + 25?' ;;
check)
    awk '{ print; fflush() }
         /^\[[0-9]+\/[0-9]+\] |^ninja: /   { paris = sum = 0; next }
         /tok\/s/                          { next }
         paris && /(^|[^0-9])42([^0-9]|$)/ { sum = 1 }
         /Paris/                           { paris = 1 }
         END                               { exit !(paris && sum) }' || {
        echo 'chat-answers.sh: no Paris and 42 in the answers' >&2
        exit 1
    }
    ;;
*)
    echo 'usage: chat-answers.sh questions|check' >&2
    exit 2
    ;;
esac
