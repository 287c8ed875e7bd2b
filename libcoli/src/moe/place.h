/* place.h - where the dense trunk lives: on which device a piece of it is worth more than the experts
 * that it displaces.
 *
 * Pure, like plan.h: the same input gives the same places on every machine; no clock, file, thread or
 * memory of its own.  trunk.h carries out what is decided here.
 *
 * A piece is one component of one layer.  Every token reads all of it, so a byte of it is worth 1; a
 * byte of an expert is worth the probability p that a token uses that expert.  A piece takes b bytes
 * of a device with `room` for fit = floor(room / slot) experts: afterwards ranks
 * floor((room - b) / slot) .. fit-1 of the experts that would be there, likeliest first, have no
 * place any more.  The piece goes there if what it reads is worth as much as they are, or more.
 *
 *     slots of 100, room 400, p = 1 .5 .25 .125 .125 0 0 0
 *     150 bytes: ranks 2 and 3 leave, .25*100 + .125*100 = 37.5: the piece is placed, room 250
 *      50 bytes: room 200 still fits ranks 0 and 1, nothing leaves: placed */
#ifndef COLI_MOE_PLACE_H
#define COLI_MOE_PLACE_H

#include "../base/error.h"

/* What a piece is, in the order in which they are placed. */
#define COLI__COMPONENT_LIST(X)                                                                    \
    X(LMHEAD, "lmhead")     /* the output matrix */                                                \
    X(DNPROJ, "dnproj")     /* input projections of a DeltaNet layer */                            \
    X(DNOUT, "dnout")       /* its output projection */                                            \
    X(ATTNPROJ, "attnproj") /* all projections of an attention layer */                            \
    X(SHEXP, "shexp")       /* the shared expert of a layer */

typedef enum coli__component {
#define COLI__COMPONENT_MEMBER(name, text) COLI__##name,
    COLI__COMPONENT_LIST(COLI__COMPONENT_MEMBER)
#undef COLI__COMPONENT_MEMBER
        COLI__N_COMPONENT
} coli__component;

const char *coli__component_name(coli__component component);

enum { COLI__PLACE_MAX_DEVICE = 32, COLI__ON_HOST = -1 };

/* ---- what there is --------------------------------------------------------------------------- */

typedef struct coli__offer {
    coli__component component;
    uint32_t layer;     // of the model; the last one for lmhead
    uint64_t bytes;     // that a token reads
    uint64_t footprint; // that it takes of a device, at least bytes
    uint32_t devices;   // bit i: device i computes its formats
} coli__offer;

typedef struct coli__place_device {
    uint64_t room;     // bytes for trunk and experts
    uint32_t n_expert; // that it would hold if it had room for all
    const double *p;   // (n_expert) the probability that a token uses each, highest first
} coli__place_device;

typedef struct coli__place_world {
    uint32_t n_device;
    const coli__place_device *devices; // (n_device)
    uint64_t slot_footprint;           // room of one expert; not 0 where there are any
    uint64_t expert_bytes;             // read when it is used
} coli__place_world;

/* How likely a token uses each of the experts whose home a device is, highest first:
 * min(1, n_used * heat / sum of its layer), n_used / n_expert in a layer without heat.
 *   home  (n_layer, n_expert) a device each
 *   heat  (n_layer, n_expert) of earlier runs; NULL: none
 *   p     (n_layer * n_expert) the caller's; returns how many were written */
uint32_t coli__place_chances(uint32_t n_layer, uint32_t n_expert, uint32_t n_used,
                             const uint8_t *home, uint32_t device, const uint32_t *heat, double *p);

/* ---- what is decided ------------------------------------------------------------------------- */

typedef enum coli__place_why {
    COLI__WHY_PLACED,
    COLI__WHY_ASKED,  // the list says the processor, or does not name it
    COLI__WHY_UNABLE, // no device computes its formats
    COLI__WHY_NO_ROOM,
    COLI__WHY_EXPERTS, // which are worth more
    COLI__WHY_SLOWER,  // the devices that could are no faster than the processor
    COLI__N_WHY
} coli__place_why;

typedef struct coli__placing {
    int32_t device; // index, or COLI__ON_HOST
    coli__place_why why;
    uint32_t n_displaced; // experts that have no room any more
} coli__placing;

/* By worth: lmhead first, then the other components in their order, each in the order of offers.  The
 * device is the one with the most room, the lowest of those with equal room; a dnout goes where the
 * dnproj of its layer is, if there is room.
 *   devices       a set of bits: those that may be used
 *   before_experts  everything that has room, whatever it displaces
 *   out           (n) */
void coli__place_auto(const coli__place_world *w, uint32_t devices, bool before_experts,
                      const coli__offer *offers, uint32_t n, coli__placing *out);

/* Whether a device that takes so long for a product is worth it: it has to be faster. */
bool coli__place_pays(double device_ns, double host_ns);

/* ---- what people say ------------------------------------------------------------------------- */

enum { COLI__LIST_ITEMS = 8, COLI__LIST_NAME = 16, COLI__LIST_SEGMENTS = 8, COLI__LIST_SPEC = 63 };

typedef enum coli__place_mode {
    COLI__PLACE_AUTO,
    COLI__PLACE_OFF,   // nothing of the trunk on a device
    COLI__PLACE_FIRST, // "all": everything that fits, before the experts
    COLI__PLACE_LIST
} coli__place_mode;

enum { COLI__EXPERTS_AUTO = -1, COLI__EXPERTS_ALL = -2, COLI__EXPERTS_CPU = -3 }; // or a device

typedef struct coli__place_list {
    coli__place_mode mode;
    int32_t experts; // which devices hold experts
    uint32_t n_item;
    struct coli__list_item {
        char name[COLI__LIST_NAME];
        uint32_t n_segment;
        struct coli__list_segment {
            int32_t device;   // COLI__ON_HOST: the processor
            uint32_t n_layer; // 0: all that are left
        } segments[COLI__LIST_SEGMENTS];
    } items[COLI__LIST_ITEMS];
} coli__place_list;

/* "auto" (or NULL), "off", "all"; or items, ',' or ';' between them:
 *
 *     NAME=cpu   NAME=DEVICE   NAME=DEVICE:LAYERS+DEVICE:LAYERS...   experts=DEVICE|all|cpu
 *
 * LAYERS are consecutive layers of the model, whatever they hold; without it, or at 0 and below, the
 * rest.  Layers beyond the last segment, and what no item names, stay on the processor.
 * E_INVALID names the item and says what is expected. */
coli_status coli__place_parse(const char *text, coli__place_list *out);

/* Replace the numbers by which people know devices by indices.  E_INVALID for one that is not among
 * `ordinals` (n_device). */
coli_status coli__place_resolve(coli__place_list *list, const uint32_t *ordinals,
                                uint32_t n_device);

/* A resolved list is obeyed as far as there is room; in the order of offers. */
void coli__place_listed(const coli__place_world *w, const coli__place_list *list,
                        const coli__offer *offers, uint32_t n, coli__placing *out);

/* Which devices may hold experts, as bits: those that the list says; else those that it names for no
 * piece, or all if that leaves none. */
uint32_t coli__place_expert_devices(const coli__place_list *list, uint32_t n_device);

#endif
