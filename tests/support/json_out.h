/* json_out.h - what a program printed as JSON, by paths like "decode.parts.head.bytes" or "items.0.name"; the
 * test fails where there is nothing of the kind. */
#ifndef COLI_TEST_JSON_OUT_H
#define COLI_TEST_JSON_OUT_H

#include <jansson.h>

#include "programs.h"

static inline json_t *json_of(const outcome *o) // json_decref()
{
    json_error_t error;
    json_t *root = json_loads(o->out, 0, &error);
    EXPECT(*o, root != NULL);
    return root;
}

/* NULL when there is none. */
static inline const json_t *json_at(const json_t *root, const char *path)
{
    char key[64];
    while (*path) {
        const size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key))
                                   : json_object_get(root, key);
        path += n + (path[n] != 0);
    }
    return root;
}

static inline double json_number_at(const json_t *root, const char *path)
{
    if (!json_is_number(json_at(root, path))) fail_msg("%s is missing, or no number", path);
    return json_number_value(json_at(root, path));
}

static inline const char *json_text_at(const json_t *root, const char *path)
{
    if (!json_is_string(json_at(root, path))) fail_msg("%s is missing, or no string", path);
    return json_string_value(json_at(root, path));
}

#endif
