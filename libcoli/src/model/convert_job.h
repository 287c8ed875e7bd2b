/* convert_job.h - the journal of a conversion, by which one that was killed is gone on with.
 *
 * The directory OUT.partial belongs to a conversion as long as `unfinished.txt` is in it, which says so
 * to people, holds the facts that decide every byte of the result, and tells what is finished.  The
 * same conversion goes on behind that; any other begins anew. */
#ifndef COLI_MODEL_CONVERT_JOB_H
#define COLI_MODEL_CONVERT_JOB_H

#include "../base/file.h"

#define COLI_JOB_FILE "unfinished.txt"

typedef struct coli__job {
    const char *dir; // borrowed
    char *path;      // of the journal
    char *room;      // dir/ and room for the name of any file in it
    size_t n_dir;    // of its bytes
    int lock;        // -1: what is there is not ours
    coli__writer *file;
    void *hash;     // of everything in the journal
    coli__buf told; // what it held besides the facts; empty: begin at the beginning
    bool has_told;  // it holds something besides the facts now
} coli__job;

/* Take the directory, which is created where there is none.
 *   facts  lines "WORD VALUE", ended by \n
 *   note   is told when something is there and cannot be used; may be NULL
 * Errors   E_EXISTS: another conversion is at work there, or what is there is no conversion's. */
coli_status coli__job_open(const char *dir, const char *facts,
                           void (*note)(void *user, const char *line), void *user, coli__job *out);
/* Forget what is told, and remove what else is there: the conversion begins anew. */
coli_status coli__job_anew(coli__job *job, const char *facts);
/* Tell more; it is on the disk when this returns. */
coli_status coli__job_tell(coli__job *job, const coli__buf *lines);
/* The directory gets its last name, and the journal goes.  Whatever happens the lock is held until then;
 * where that cannot be (coli__dir_moves_open), what has the name has to be looked at. */
coli_status coli__job_publish(coli__job *job, const char *to);
/* Remove what the conversion wrote, unless it has its last name, and let the directory go. */
void coli__job_remove(coli__job *job);
/* Let the directory go and leave it as it is.  A zeroed one is fine. */
void coli__job_close(coli__job *job);

/* Whether the directory holds a conversion that was not finished. */
bool coli__job_is_in(const char *dir);

#endif
