/* scrub.h - take out of a text what tells who wrote it, so that it can be shown to strangers. */
#ifndef COLI_SCRUB_H
#define COLI_SCRUB_H

/* The text with the home directory as ~, names of the person and of the machine as (user) and (host), and of
 * every path the last component at most, ".../model.coli", however it is written: of any system, relative,
 * below ~, with blanks, between quotes.  Names are found within words, too, if
 * they have three letters or more: better a word too few than one too many.  New memory (free). */
char *scrub_text(const char *text);

#endif
