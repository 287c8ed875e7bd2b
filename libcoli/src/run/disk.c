/* disk.c - see disk.h. */
#include "disk.h"

#include "../base/direct.h"
#include "../base/memory.h"
#include "../base/random.h"
#include "../base/threads.h"

enum { N_READER = 4, READS_PER_ROUND = 16, MAX_ROUND = 8 };
static const uint64_t enough_ns = 400000000;

typedef struct disk {
    coli__direct *file;
    uint64_t n_bytes, piece_bytes, seed;
    uint8_t *rooms; // (N_READER, room_bytes)
    uint64_t room_bytes;
    coli_status status[N_READER];
} disk;

static void read_item(void *ctx, uint32_t item, uint32_t worker)
{
    disk *d = ctx;
    uint64_t state = d->seed + item;
    const uint64_t n_place = (d->n_bytes - d->piece_bytes) / COLI__DIRECT_ALIGN + 1;
    const uint64_t offset = coli__random(&state) % n_place * COLI__DIRECT_ALIGN;
    const uint8_t *data;
    if (d->status[worker] == COLI_OK)
        d->status[worker] = coli__direct_read(d->file, offset, d->piece_bytes,
                                              d->rooms + worker * d->room_bytes, &data);
}

static coli_status read_rounds(disk *d, coli__pool *pool, coli__disk_speed *out)
{
    const uint64_t start_ns = coli__clock_ns();
    for (int i = 0; i < MAX_ROUND; i++) {
        const uint64_t round_ns = coli__clock_ns();
        d->seed = (uint64_t)(i + 1) << 32;
        coli__pool_run(pool, READS_PER_ROUND, read_item, d);
        const uint64_t now_ns = coli__clock_ns();
        for (int w = 0; w < N_READER; w++)
            if (d->status[w] != COLI_OK) // the message is another thread's
                return coli__fail(d->status[w], "a piece of the file could not be read");
        const double speed =
            (double)(READS_PER_ROUND * d->piece_bytes) / (double)(now_ns - round_ns + 1);
        if (i == 0 || speed < out->gb_s_min) out->gb_s_min = speed;
        if (speed > out->gb_s_max) out->gb_s_max = speed;
        if (now_ns - start_ns > enough_ns) break;
    }
    out->is_direct = coli__direct_is_direct(d->file);
    return COLI_OK;
}

coli_status coli__disk_measure(const char *path, coli__file_id id, uint64_t n_bytes,
                               uint64_t piece_bytes, coli__disk_speed *out)
{
    *out = (coli__disk_speed){0};
    disk d = {.n_bytes = n_bytes,
              .piece_bytes = piece_bytes,
              .room_bytes = coli__direct_room(piece_bytes)};
    uint64_t all_bytes;
    void *rooms;
    coli__pool *pool = NULL;
    if (piece_bytes == 0 || piece_bytes > n_bytes || d.room_bytes == 0 ||
        !coli__mul(N_READER, d.room_bytes, &all_bytes))
        return coli__fail(COLI_E_INVALID, "%s: pieces of %llu bytes of a file of %llu", path,
                          (unsigned long long)piece_bytes, (unsigned long long)n_bytes);
    COLI_TRY(coli__pages_take(all_bytes, &rooms));
    d.rooms = rooms;
    coli_status status = coli__direct_open(path, id, &d.file);
    if (status == COLI_OK) status = coli__pool_create(N_READER, &pool);
    if (status == COLI_OK) status = read_rounds(&d, pool, out);
    coli__pool_destroy(pool);
    coli__direct_close(d.file);
    coli__pages_give(rooms, all_bytes);
    return status;
}
