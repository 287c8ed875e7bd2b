/* cmd_render.c - `coli render`: conversations to prompts.
 *
 * A template that refuses (two system messages, no question) is a result like any other: an error
 * in the line's place, and exit code 0.  A line that is no conversation at all makes it 2. */
#include <stdlib.h>
#include <string.h>

#include "coli/coli.h"
#include "commands.h"
#include "input.h"
#include "options.h"
#include "terminal.h"

/* False: the line was no good. */
static bool render_line(const json_t *object, const char *bad_line, const char *tmpl_otherwise)
{
    if (!object) return app_json_error_line(bad_line), false;
    const json_t *tmpl = json_object_get(object, "template");
    if (tmpl && !json_is_string(tmpl))
        return app_json_error_line("\"template\": expected a string"), false;
    const json_t *messages = json_object_get(object, "messages");
    if (!messages) return app_json_error_line("expected an object with \"messages\""), false;
    const json_t *options = json_object_get(object, "options");
    char *m = json_dumps(messages, JSON_ENCODE_ANY), *o = NULL;
    if (options && !json_is_null(options)) o = json_dumps(options, JSON_ENCODE_ANY);
    coli_text text = {0};
    const coli_status status =
        coli_chat_render(tmpl ? json_string_value(tmpl) : tmpl_otherwise, m ? m : "",
                         m ? strlen(m) : 0, o, o ? strlen(o) : 0, &text);
    if (status == COLI_OK) {
        json_t *line = json_object();
        json_object_set_new(line, "text", json_stringn(text.data ? text.data : "", text.n_bytes));
        app_json_line(line);
    } else {
        app_json_error_line(coli_error_message());
    }
    coli_text_free(&text);
    free(m);
    free(o);
    return status == COLI_OK || status == COLI_E_INVALID;
}

int cmd_render(const app_settings *s)
{
    if (!s->jsonl) return app_usage("render", "render: --jsonl is missing");
    app_jsonl j;
    int code = app_jsonl_open(&j, "-");
    json_t *object;
    while (code != APP_FAILED && app_jsonl_next(&j, &object)) {
        if (!render_line(object, j.error, s->template ? s->template : "3.6")) code = APP_BAD;
        json_decref(object);
        if (ferror(stdout)) code = APP_FAILED;
    }
    app_jsonl_close(&j);
    return code;
}
