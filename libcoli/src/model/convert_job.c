/* convert_job.c - see convert_job.h.
 *
 *     This directory is what ... left.               for people
 *     program coli 0.3.0                             the facts: one conversion's are another's, or
 *     trunk int8-g64-f16                             what it left is not used
 *     file model-00001-of-00002.safetensors 4999 ...
 *     sum 6c1e...                                    checksum of all bytes before this line
 *     tensor embed_tokens.weight int8-g64-f16 ...    told when the weights were on the disk
 *     sum 01fa...
 *
 * A process may end, or the power fail, at any instant:
 *
 *   - before the first sum: nothing was told; the conversion begins at the beginning;
 *   - while more is told: what follows the last sum that is right is cut off;
 *   - after weights were written and before they were told of: they are written again.
 *
 * So the journal never tells of more than there is, and what it tells of is compared with checksums
 * before anything is appended (container_write.c).
 *
 * Two conversions to one place exclude each other by a lock on the journal, which goes with the
 * process that held it.  It is held until the directory has its last name or is empty: who gets it
 * afterwards gets a file that is not there any more, which coli__lock_take refuses.  Where a
 * directory with open files cannot be renamed, the lock has to be given just before, and the rename
 * fails while somebody else has it; who looks afterwards whether all is there is convert.c.
 *
 * What a conversion does not write is never removed. */
#include "convert_job.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "container_format.h"

enum { JOURNAL_MAX_BYTES = 64 << 20 }; // 2^18 experts take 16 MB

static const char preface[] = "This directory is what a conversion left that was not finished.  "
                              "The same `coli convert` goes\n"
                              "on with it.  Nothing else can be done with it; it may be removed.\n";

static coli__digest digest_of(const XXH3_state_t *hash)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    return coli__digest_text(canonical.digest);
}

/* -- writing ----------------------------------------------------------------------------------- */

static coli_status append(coli__job *job, const char *bytes, size_t n_bytes)
{
    XXH3_128bits_update(job->hash, bytes, n_bytes);
    return coli__writer_append(job->file, bytes, n_bytes);
}

static coli_status append_sum(coli__job *job)
{
    char line[48];
    const int n = snprintf(line, sizeof line, "sum %s\n", digest_of(job->hash).hex);
    COLI_TRY(append(job, line, (size_t)n));
    return coli__writer_sync(job->file);
}

coli_status coli__job_tell(coli__job *job, const coli__buf *lines)
{
    COLI_TRY(append(job, lines->data, lines->n_bytes));
    COLI_TRY(append_sum(job));
    job->has_told = true;
    return COLI_OK;
}

/* Cleaning up must not need memory: the names are put into job->room. */
static void remove_file(const coli__job *job, const char *name)
{
    memcpy(job->room + job->n_dir, name, strlen(name) + 1);
    coli__file_remove(job->room);
}

/* What a conversion writes besides the journal. */
static void remove_others(const coli__job *job)
{
    remove_file(job, "model.coli");
    for (int i = 0; i < CT_N_FILE; i++) remove_file(job, coli__ct_file_names[i]);
}

/* The old facts are gone from the journal before the first new byte is beside it. */
coli_status coli__job_anew(coli__job *job, const char *facts)
{
    coli__buf_finish(&job->told);
    coli__writer_abandon(job->file);
    job->file = NULL;
    job->has_told = false;
    remove_others(job);
    COLI_TRY(coli__writer_reopen(job->path, 0, &job->file));
    XXH3_128bits_reset(job->hash);
    COLI_TRY(append(job, preface, strlen(preface)));
    COLI_TRY(append(job, facts, strlen(facts)));
    return append_sum(job);
}

/* -- reading ----------------------------------------------------------------------------------- */

static coli_status fail_foreign(const char *dir)
{
    return coli__fail(COLI_E_EXISTS,
                      "%s: already exists, and is not what an unfinished conversion leaves: remove "
                      "it, or give another OUT",
                      dir);
}

static coli_status fail_taken(const char *dir)
{
    return coli__fail(COLI_E_EXISTS, "%s: another conversion is writing it now", dir);
}

/* Where the facts end, and where the last right sum does; 0 where there is none. */
typedef struct extent {
    size_t facts, sum, all;
} extent;

/* job->hash is that of the whole extent afterwards. */
static extent read_extent(coli__job *job, const char *text)
{
    extent e = {0};
    XXH3_128bits_reset(job->hash);
    const char *fresh = text; // not in the hash yet
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        if (strncmp(line, "sum ", 4) != 0) continue;
        XXH3_128bits_update(job->hash, fresh, (size_t)(line - fresh));
        fresh = line;
        const coli__digest found = digest_of(job->hash);
        if (end - line != 36 || strncmp(line + 4, found.hex, 32) != 0) break;
        XXH3_128bits_update(job->hash, fresh, (size_t)(end + 1 - fresh));
        fresh = end + 1;
        e.all = (size_t)(fresh - text);
        if (e.sum == 0) {
            e.facts = (size_t)(line - text);
            e.sum = e.all;
        }
    }
    XXH3_128bits_reset(job->hash);
    XXH3_128bits_update(job->hash, text, e.all);
    return e;
}

static size_t line_length(const char *text)
{
    return strcspn(text, "\n");
}

/* The name in "file NAME BYTES WRITTEN"; 0 bytes where the fact is another. */
static size_t file_of(const char *fact, const char **name)
{
    static const char word[] = "file ";
    const size_t n_word = sizeof word - 1;
    size_t n = line_length(fact);
    *name = fact + n_word;
    if (strncmp(fact, word, n_word) != 0) return 0;
    for (int blanks = 0; n > n_word && blanks < 2;) blanks += fact[--n] == ' ';
    return n - n_word;
}

/* The first fact in which the two differ, in words. */
static void tell_difference(const coli__job *job, const char *then, const char *now,
                            void (*note)(void *, const char *), void *user)
{
    char line[400];
    const char *was, *is;
    while (*then && *now && line_length(then) == line_length(now) &&
           strncmp(then, now, line_length(now)) == 0) {
        then += line_length(then) + (then[line_length(then)] != 0);
        now += line_length(now) + (now[line_length(now)] != 0);
    }
    const size_t n_was = file_of(then, &was), n_is = file_of(now, &is);
    if (n_was > 0 && n_was == n_is && strncmp(was, is, n_is) == 0)
        snprintf(line, sizeof line,
                 "beginning anew: %.*s was changed since the conversion that left %.120s",
                 (int)(n_is < 200 ? n_is : 200), is, job->dir);
    else
        snprintf(line, sizeof line,
                 "beginning anew: the conversion that left %.120s was of another kind: \"%.*s\" "
                 "then, \"%.*s\" now",
                 job->dir, (int)(line_length(then) < 90 ? line_length(then) : 90), then,
                 (int)(line_length(now) < 90 ? line_length(now) : 90), now);
    note(user, line);
}

static void tell_nothing_done(const coli__job *job, void (*note)(void *, const char *), void *user)
{
    char line[240];
    snprintf(line, sizeof line,
             "beginning anew: the conversion that left %.120s had finished nothing yet", job->dir);
    note(user, line);
}

static void tell_useless(const coli__job *job, void (*note)(void *, const char *), void *user)
{
    char line[200];
    snprintf(line, sizeof line, "beginning anew: what is told in %.120s cannot be used", job->dir);
    note(user, line);
}

/* A file of that name may be anybody's.  Zeros are what a power failure makes of one. */
static bool is_journal(const char *text)
{
    const size_t n = strlen(text), n_preface = strlen(preface);
    return strncmp(text, preface, n < n_preface ? n : n_preface) == 0;
}

/* Go on with the text of a journal, or begin anew. */
static coli_status take_up(coli__job *job, char *text, const char *facts,
                           void (*note)(void *, const char *), void *user)
{
    const extent e = read_extent(job, text);
    const size_t n_preface = strlen(preface);
    if (!is_journal(text)) return fail_foreign(job->dir);
    if (e.sum == 0) {
        if (note) tell_useless(job, note, user);
        return coli__job_anew(job, facts);
    }
    text[e.facts] = 0;
    if (strcmp(text + n_preface, facts) != 0) {
        if (note) tell_difference(job, text + n_preface, facts, note, user);
        return coli__job_anew(job, facts);
    }
    COLI_TRY(coli__buf_append(&job->told, text + e.sum, e.all - e.sum));
    job->has_told = job->told.n_bytes > 0;
    if (!job->has_told && note) tell_nothing_done(job, note, user);
    return coli__writer_reopen(job->path, e.all, &job->file);
}

static coli_status read_journal(coli__job *job, const char *facts,
                                void (*note)(void *, const char *), void *user)
{
    coli__buf text = {0};
    coli_status status = coli__file_read(job->path, JOURNAL_MAX_BYTES, &text);
    if (status != COLI_OK) return status;
    if (text.n_bytes == 0)
        status = coli__job_anew(job, facts);
    else
        status = take_up(job, text.data, facts, note, user);
    coli__buf_finish(&text);
    return status;
}

/* -- the directory ----------------------------------------------------------------------------- */

bool coli__job_is_in(const char *dir)
{
    char *path;
    if (coli__path_join(dir, COLI_JOB_FILE, &path) != COLI_OK) return false;
    const bool is_in = coli__path_exists(path);
    coli__free(path);
    return is_in;
}

/* Something is there already.  A directory without anything is a conversion's that ended before its
 * first byte. */
static coli_status check_ours(const char *dir)
{
    bool is_ours = false;
    if (!coli__path_exists(dir)) return fail_taken(dir); // it had the name until now
    if (coli__path_is_dir(dir)) {
        char **names;
        size_t n;
        const coli_status status = coli__dir_list(dir, &names, &n);
        if (status == COLI_E_NOTFOUND) return fail_taken(dir);
        if (status != COLI_OK) return status;
        is_ours = n == 0;
        for (size_t i = 0; i < n; i++) {
            is_ours = is_ours || strcmp(names[i], COLI_JOB_FILE) == 0;
            coli__free(names[i]);
        }
        coli__free(names);
    }
    return is_ours ? COLI_OK : fail_foreign(dir);
}

static coli_status take_lock(coli__job *job)
{
    const coli_status status = coli__lock_take(job->path, &job->lock);
    if (status != COLI_E_EXISTS && status != COLI_E_NOTFOUND) return status;
    return fail_taken(job->dir); // not found: who held it has just moved or removed the directory
}

static void give_lock(coli__job *job)
{
    coli__lock_give(job->lock);
    job->lock = -1;
}

/* job->path and job->room. */
static coli_status make_paths(coli__job *job)
{
    static const char longest[] = "a name as long as any of a container's files";
    COLI_TRY(coli__path_join(job->dir, COLI_JOB_FILE, &job->path));
    COLI_TRY(coli__path_join(job->dir, longest, &job->room));
    job->n_dir = strlen(job->room) - strlen(longest);
    return COLI_OK;
}

coli_status coli__job_open(const char *dir, const char *facts,
                           void (*note)(void *user, const char *line), void *user, coli__job *out)
{
    *out = (coli__job){.dir = dir, .lock = -1};
    out->hash = XXH3_createState();
    if (!out->hash) return coli__fail(COLI_E_NOMEM, "out of memory");
    coli_status status = make_paths(out);
    bool is_new = false;
    if (status == COLI_OK) {
        status = coli__dir_create(dir);
        is_new = status == COLI_OK;
        if (status == COLI_E_EXISTS) status = check_ours(dir);
    }
    if (status == COLI_OK) status = take_lock(out);
    if (status == COLI_OK) status = read_journal(out, facts, note, user);
    if (status != COLI_OK) {
        if (is_new)
            coli__job_remove(out);
        else
            coli__job_close(out);
    }
    return status;
}

/* The lock had to go before the rename: who has it now has what is there, too. */
static coli_status take_back(coli__job *job, coli_status status)
{
    char why[800];
    snprintf(why, sizeof why, "%s", coli_error_message());
    if (coli__lock_take(job->path, &job->lock) != COLI_OK) job->lock = -1;
    return coli__fail(status, "%s", why);
}

/* The journal goes with the directory and out of it last: who is killed before that leaves a whole
 * container with a note too many, never half a one without. */
coli_status coli__job_publish(coli__job *job, const char *to)
{
    char *journal;
    bool moved;
    COLI_TRY(coli__path_join(to, COLI_JOB_FILE, &journal));
    coli__writer_abandon(job->file);
    job->file = NULL;
    if (!coli__dir_moves_open) give_lock(job);
    coli_status status = coli__path_move(job->dir, to, &moved);
    if (moved) {
        coli__file_remove(journal);
        give_lock(job);
    } else if (job->lock < 0) {
        status = take_back(job, status);
    }
    coli__free(journal);
    return status;
}

void coli__job_remove(coli__job *job)
{
    const char *dir = job->dir;
    coli__writer_abandon(job->file);
    job->file = NULL;
    if (job->lock >= 0) {
        remove_others(job);
        coli__file_remove(job->path);
    }
    coli__job_close(job);
    coli__dir_remove_empty(dir); // where somebody else has come meanwhile it is not empty
}

void coli__job_close(coli__job *job)
{
    if (job->hash) XXH3_freeState(job->hash);
    coli__writer_abandon(job->file);
    if (job->path) give_lock(job);
    coli__buf_finish(&job->told);
    coli__free(job->room);
    coli__free(job->path);
    *job = (coli__job){.lock = -1};
}
