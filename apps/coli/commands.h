/* commands.h - what `coli NAME` does, one function per name.  Each returns the exit code. */
#ifndef COLI_COMMANDS_H
#define COLI_COMMANDS_H

#include "settings.h"

int cmd_chat(const app_settings *s);
int cmd_run(const app_settings *s);
int cmd_tokenize(const app_settings *s);
int cmd_render(const app_settings *s);
int cmd_info(const app_settings *s);
int cmd_plan(const app_settings *s);
int cmd_doctor(const app_settings *s);
int cmd_report(const app_settings *s);
int cmd_pack(const app_settings *s);
int cmd_unpack(const app_settings *s);
int cmd_convert(const app_settings *s);
int cmd_verify(const app_settings *s);
int cmd_synth(const app_settings *s);
int cmd_bench(const app_settings *s);
int cmd_quality(const app_settings *s); // bench --quality
int cmd_backend(const app_settings *s);
int cmd_heat(const app_settings *s);
int cmd_imatrix(const app_settings *s);
int cmd_replay(const app_settings *s);

#endif
