/* fuzz_chat.c - {"template", "messages", "options"} as JSON, rendered and encoded with the small
 * tokenizer. */
#include "libcoli/src/model/chat_template.h"
#include "small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void must(bool condition)
{
    if (!condition) abort();
}

static void check(const coli__render *r)
{
    static coli__tok *tok; // opened once
    if (!tok) must(small_open(&tok) == COLI_OK);
    must(coli__utf8_check(r->text.data, r->text.n_bytes) == r->text.n_bytes);
    must(r->stable_bytes <= r->text.n_bytes);
    size_t at = 0;
    for (size_t i = 0; i < r->n_plain; at = r->plain[i++].end)
        must(r->plain[i].begin >= at && r->plain[i].end > r->plain[i].begin);
    must(at <= r->text.n_bytes);
    int32_t *ids;
    size_t n_ids;
    must(coli__tok_encode(tok, r->text.data, r->text.n_bytes, r->plain, r->n_plain, &ids, &n_ids) ==
         COLI_OK);
    coli__free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    json_t *item;
    if (coli__chat_parse("chat", (const char *)data, n_bytes, &item) != COLI_OK) {
        must(*coli_error_message() != 0);
        return 0;
    }
    const char *given = json_string_value(json_object_get(item, "template"));
    coli__render r;
    const coli_status status =
        coli__chat_render(given ? given : "3.6", json_object_get(item, "messages"),
                          json_object_get(item, "options"), &r);
    if (status == COLI_OK)
        check(&r);
    else
        must(status == COLI_E_INVALID || status == COLI_E_UNSUPPORTED);
    coli__render_finish(&r);
    json_decref(item);
    return 0;
}
