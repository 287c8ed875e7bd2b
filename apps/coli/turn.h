/* turn.h - one question and its answer on the terminal, for `coli run` and `coli chat`. */
#ifndef COLI_TURN_H
#define COLI_TURN_H

#include "open_model.h"

/* Say `text`, stream the answer, print the footer and what is worth knowing about how it ended.
 * full_hint is printed when the context is the reason; NULL where there is nothing to say.
 * Returns APP_OK; APP_INTERRUPTED after Ctrl-C; another exit code, with its message printed. */
int turn_say(coli_chat *chat, app_engine *engine, const app_settings *s, const char *text,
             const char *full_hint);

#endif
