/* table.h - everything that a container holds, by number instead of by name. */
#ifndef COLI_TEST_TABLE_H
#define COLI_TEST_TABLE_H

#include "world.h"

#include "libcoli/src/model/container_format.h"

typedef struct table {
    coli__map map;
    coli__ct_table ct; // points into map
} table;

static inline table table_open(const char *dir)
{
    table t;
    char *path = world_path(dir, "model.coli");
    T_OK(coli__map_open(path, &t.map));
    T_OK(coli__ct_parse(path, t.map.data, t.map.n_bytes, &t.ct));
    free(path);
    return t;
}

static inline void table_close(table *t)
{
    coli__ct_table_finish(&t->ct);
    coli__map_close(&t->map);
}

#endif
