/* cache_route.h - cache-aware routing (docs/CACHE_ROUTE.md) from settings to the library, and what is said
 * about it.  All goes to stderr. */
#ifndef APP_CACHE_ROUTE_H
#define APP_CACHE_ROUTE_H

#include "coli/coli.h"
#include "settings.h"

/* How a session is to route.  False: plainly, and nothing is metered. */
bool app_route_opts(const app_settings *s, coli_route_opts *out);

/* The line that says that it is lossy, when it is on; warnings about settings that have no effect, when it
 * is off. */
void app_route_tell(const app_settings *s, const coli_route_opts *opts);

/* How much the model's sessions exchanged, and what that cost, as far as it was metered. */
void app_route_footer(const coli_model *model, const coli_route_opts *opts);

#endif
