/* chat_template.h - ChatML with the think and tool rules of Qwen3.5 and Qwen3.6, as bytes.  Pure. */
#ifndef COLI_MODEL_CHAT_TEMPLATE_H
#define COLI_MODEL_CHAT_TEMPLATE_H

#include "json.h"
#include "tokenizer.h"

typedef struct coli__render {
    coli__buf text;
    coli__span *plain; // stretches that came from messages or tools: encode without added tokens
    size_t n_plain;
    /* Length of the prefix that every later rendering of this conversation shares, once the next
     * message is the assistant's: up to and with the generation prompt's "<|im_start|>assistant\n", or
     * an earlier one whose think block the next user message will remove (turns that led to tool
     * calls since the last query, unless preserve_thinking).  "<think>" follows, an added token, so the
     * prefix's own tokens begin the whole's; those of a later rendering too, unless a blank follows
     * there (an answer that keeps one: docs/chat.md).
     * Without a generation prompt and such a block, text.n_bytes. */
    size_t stable_bytes;
} coli__render;

void coli__render_finish(coli__render *r);

/* Parse messages or options for a rendering: like coli__json_parse, but whole numbers keep all their
 * digits whatever their size, and strings may hold U+0000 except as their first character.  (A number
 * beyond 64 bits becomes a string of U+0000 and its digits, which only coli__chat_render understands.) */
coli_status coli__chat_parse(const char *what, const char *text, size_t n_bytes, json_t **out);

/* tmpl is "3.6" or "3.5" (E_INVALID otherwise).  messages: array of {role, content, reasoning_content,
 * tool_calls}; content is a string, null or an array of {"type":"text","text"}.  options: object or NULL with
 * tools, enable_thinking, preserve_thinking, add_generation_prompt (true unless given); others are ignored.
 * *out is written on success only; release it with coli__render_finish.
 * Errors  E_INVALID where the family's template refuses, or where it would render something other than
 *         what was meant (docs/chat.md lists these); E_UNSUPPORTED for images and video; E_NOMEM. */
coli_status coli__chat_render(const char *tmpl, const json_t *messages, const json_t *options,
                              coli__render *out);

#endif
