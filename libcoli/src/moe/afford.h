/* afford.h - how many copies of experts a machine can afford.  Pure: speeds in, numbers out.
 *
 * A copy costs the time that somebody waits for it, and no more: the host, where it waits for copies;
 * else the next layer's activations, which come after a while, in which nothing else uses the link. */
#ifndef COLI_MOE_AFFORD_H
#define COLI_MOE_AFFORD_H

#include <stdbool.h>
#include <stdint.h>

enum {
    COLI__AFFORD_ANSWER = 256, // tokens that an answer is expected to have
    COLI__AFFORD_STAY = 40     // tokens for which a correction stays right
};

typedef struct coli__speeds {
    double copy_ns;            // of one expert to the device; 0: takes no time
    double host_ns, device_ns; // the processor's, the device's time for an expert and one row
    bool waits;                // the host waits for copies
    /* By the clock, where many rows are computed at once; 0: not known.  What a row takes on the processor;
     * what an expert takes to a spare slot, from wherever it is; and what each row takes then. */
    double host_row_ns, pass_ns, pass_row_ns;
} coli__speeds;

/* Uses per token that a newcomer must have more than its victim, to save within n_token tokens what
 * its copy costs when the link is idle for idle_ns from now.  INFINITY when it never saves anything. */
double coli__afford_uses(const coli__speeds *s, double idle_ns, uint32_t n_token);

/* How many copies fill the link for so long. */
uint64_t coli__afford_copies(const coli__speeds *s, double ns);

/* Of n experts that no device holds, which the rows of a chunk use n_row[i] times, most first: how many,
 * from the first on, pass through the devices while the processor computes the others.  One does if it
 * is there sooner than the processor would be done with all that are left. */
uint32_t coli__afford_stream(const coli__speeds *s, uint32_t n_device, const uint32_t *n_row,
                             uint32_t n);

/* ---- copies that hold back ------------------------------------------------------------------- */

/* While a prompt is computed, its own transfers come first: no more copies begin than the link
 * carries in the time in which it would be idle.  What is not used of that is past. */
typedef struct coli__pace {
    double credit_ns;
} coli__pace;

/* A layer is done; the link will be idle for about idle_ns, until the next one wants its activations.
 * Where that is too short for a copy it adds up, to one. */
void coli__pace_idle(coli__pace *p, double idle_ns, double copy_ns);
bool coli__pace_may(const coli__pace *p, double copy_ns); // a copy may begin
void coli__pace_took(coli__pace *p, double copy_ns);      // it has

#endif
