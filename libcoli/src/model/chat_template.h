/* chat_template.h - ChatML with the think and tool rules of Qwen3.5 and Qwen3.6: bytes, pure. */
#ifndef COLI_MODEL_CHAT_TEMPLATE_H
#define COLI_MODEL_CHAT_TEMPLATE_H

#include "json.h"
#include "tokenizer.h"

typedef struct coli__render {
    coli__buf text;
    coli__span *plain; // stretches that came from messages or tools: encode without added tokens
    size_t n_plain;
    /* Length of the prefix that every later rendering of this conversation shares, once the next
     * message is the assistant's: up to and with the generation prompt's "<|im_start|>assistant\n",
     * or an earlier one whose think block the next user message will remove (turns that led to tool
     * calls since the last query, unless preserve_thinking).  Without either, text.n_bytes.
     * An added token follows, so the prefix's own tokens begin the whole's; those of a later
     * rendering too, unless an answer stands there that begins with a blank (docs/chat.md). */
    size_t stable_bytes;
} coli__render;

void coli__render_finish(coli__render *r);

/* Parse messages or options for a rendering.  Like coli__json_parse, except that whole numbers keep
 * all their digits whatever their size, and that strings may hold U+0000, only not as the first
 * character.  (A number beyond 64 bits becomes a string of U+0000 and its digits, which is for
 * coli__chat_render alone.) */
coli_status coli__chat_parse(const char *what, const char *text, size_t n_bytes, json_t **out);

/* Render a conversation.
 *
 *   tmpl      "3.6" or "3.5"
 *   messages  array of {role, content, reasoning_content, tool_calls}; content is a string, null or
 *             an array of {"type": "text", "text"}
 *   options   object or NULL: tools, enable_thinking, preserve_thinking, add_generation_prompt
 *             (true unless given); others are ignored
 *   out       release with coli__render_finish; zeroed on failure
 *
 * Errors  E_INVALID      the family's template refuses, or would drop or misprint something
 *                        (docs/chat.md lists these); the template is not known
 *         E_UNSUPPORTED  images and video
 *         E_NOMEM */
coli_status coli__chat_render(const char *tmpl, const json_t *messages, const json_t *options,
                              coli__render *out);

#endif
