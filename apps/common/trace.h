/* trace.h - --trace and --dump-routing: what a session routes, as files for `coli replay`. */
#ifndef APP_TRACE_H
#define APP_TRACE_H

#include "open_model.h"

/* Begin, if the settings ask for it.  An exit code, with a message printed; APP_BAD where one of the
 * files is there already. */
int app_trace_open(const app_settings *s, app_engine *engine);

/* A turn is over: of what was fed in it, the first n_prompt rows are the prompt's.  Says so when there
 * is nothing to record. */
void app_trace_turn(app_engine *engine, uint32_t n_prompt);

/* Write the files, if something was recorded, and end.  `code` is how the program is about to end:
 * returned, or APP_FAILED when it was APP_OK and writing failed. */
int app_trace_close(const app_settings *s, app_engine *engine, int code);

#endif
