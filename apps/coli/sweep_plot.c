/* sweep_plot.c - a line plot as SVG: hit rates over residencies, or over what is moved.
 *
 * The picture is 760 x 480, the axes in the middle, the names of the lines at the right, each beside
 * its line's end where there is room and pushed down where there is not.  Colours are Okabe and
 * Ito's, which people who see few colours tell apart; lines beyond those are dashed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sweep.h"
#include "terminal.h"

enum { WIDTH = 760, HEIGHT = 480, LEFT = 64, RIGHT = 540, TOP = 40, BOTTOM = 420, LABEL_STEP = 15 };

static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#000000"};
enum { N_COLOUR = sizeof colours / sizeof *colours };

/* One line of the plot: points (x, y), x from small to large. */
typedef struct line {
    const char *name;
    uint32_t n;
    double *x, *y, *half;
    double label_y; // in pixels
} line;

typedef struct plot {
    const char *x_title;
    double max_x, min_y, max_y;
    line *lines;
    uint32_t n_line;
} plot;

static double pixel_x(const plot *p, double x)
{
    return LEFT + (RIGHT - LEFT) * x / p->max_x;
}

static double pixel_y(const plot *p, double y)
{
    return BOTTOM - (BOTTOM - TOP) * (y - p->min_y) / (p->max_y - p->min_y);
}

/* ---- from a sweep to lines ------------------------------------------------------------------ */

static double moved_mb(const sweep *s, const sweep_point *p)
{
    const double tokens = (double)s->traces.n_answer_row / s->traces.n_prompt;
    return sweep_mb(s, p->prompt_uploads.mean + p->token_uploads.mean * tokens);
}

static void add_point(line *l, double x, const sweep_point *p)
{
    l->x[l->n] = x;
    l->y[l->n] = p->hit.mean;
    l->half[l->n++] = p->hit.half;
}

/* Variants that differ in their allowance alone, which follow each other, share a line. */
static bool same_line(const sweep_variant *a, const sweep_variant *b)
{
    return strcmp(a->policy.name, b->policy.name) == 0 && a->cap == b->cap &&
           a->drain == b->drain && a->min_count == b->min_count;
}

static plot plot_of(const sweep *s)
{
    plot p = {.x_title = "experts in VRAM, %", .max_x = 100};
    const uint32_t n_point = s->n_variant > s->n_residency ? s->n_variant : s->n_residency;
    bool by_moves = s->n_residency == 1 && s->n_variant > 1;
    p.lines = app_alloc(s->n_variant, sizeof *p.lines);
    for (uint32_t v = 0; v < s->n_variant; v++) {
        const bool more = by_moves && v > 0 && same_line(&s->variants[v], &s->variants[v - 1]);
        if (!more) {
            line *l = &p.lines[p.n_line++];
            *l = (line){.name = by_moves ? s->variants[v].policy.name : s->variants[v].label};
            l->x = app_alloc(n_point, sizeof *l->x);
            l->y = app_alloc(n_point, sizeof *l->y);
            l->half = app_alloc(n_point, sizeof *l->half);
        }
        line *l = &p.lines[p.n_line - 1];
        for (uint32_t i = 0; i < s->n_residency; i++) {
            const sweep_point *point = &s->points[i * s->n_variant + v];
            add_point(l, by_moves ? moved_mb(s, point) : sweep_share(s, s->n_resident[i]) * 100,
                      point);
        }
    }
    if (by_moves) {
        p.x_title = "MB moved for a prompt and its answer";
        p.max_x = 1;
    }
    return p;
}

/* 1, 2 or 5 times a power of ten, so that some five steps span the range. */
static double step_for(double range)
{
    double step = 1e-3;
    for (int i = 0; step * 6 < range; i++) step *= i % 3 == 1 ? 2.5 : 2;
    return step;
}

static void find_ranges(plot *p)
{
    double min = 1, max = 0;
    for (uint32_t i = 0; i < p->n_line; i++)
        for (uint32_t k = 0; k < p->lines[i].n; k++) {
            min = fmin(min, p->lines[i].y[k] - p->lines[i].half[k]);
            max = fmax(max, p->lines[i].y[k] + p->lines[i].half[k]);
            p->max_x = fmax(p->max_x, p->lines[i].x[k]);
        }
    const double step = step_for(max - min);
    p->min_y = floor(min / step) * step;
    p->max_y = fmax(ceil(max / step) * step, p->min_y + step);
    p->max_x = ceil(p->max_x / step_for(p->max_x)) * step_for(p->max_x);
}

/* ---- drawing -------------------------------------------------------------------------------- */

static void draw_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) { // names of policies and numbers need no more than this
        if (*text == '<' || *text == '&')
            fputs(*text == '<' ? "&lt;" : "&amp;", out);
        else
            fputc(*text, out);
    }
    fputs("</text>\n", out);
}

static void draw_axes(const plot *p, FILE *out)
{
    char number[32];
    const double step_y = step_for(p->max_y - p->min_y), step_x = step_for(p->max_x);
    for (double y = p->min_y; y <= p->max_y + step_y / 2; y += step_y) {
        const double at = pixel_y(p, y);
        fprintf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, at, RIGHT);
        snprintf(number, sizeof number, "%.3g", y * 100);
        draw_text(out, LEFT - 8, at + 4, "end", number);
    }
    for (double x = 0; x <= p->max_x * 1.001; x += step_x) {
        const double at = pixel_x(p, x);
        fprintf(out, "<path class=\"axis\" d=\"M%.1f %dv5\"/>\n", at, BOTTOM);
        snprintf(number, sizeof number, "%.6g", x);
        draw_text(out, at, BOTTOM + 20, "middle", number);
    }
    fprintf(out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
    draw_text(out, (LEFT + RIGHT) / 2.0, HEIGHT - 16, "middle", p->x_title);
    draw_text(out, LEFT, TOP - 16, "start", "hits of the answer, %");
}

static void style_of(uint32_t i, char *out, size_t cap)
{
    snprintf(out, cap, "stroke=\"%s\"%s", colours[i % N_COLOUR],
             i / N_COLOUR == 0   ? ""
             : i / N_COLOUR == 1 ? " stroke-dasharray=\"6 3\""
                                 : " stroke-dasharray=\"2 3\"");
}

static void draw_line(const plot *p, uint32_t i, FILE *out)
{
    const line *l = &p->lines[i];
    char style[64];
    style_of(i, style, sizeof style);
    fprintf(out, "<g %s fill=\"none\">\n", style);
    for (uint32_t k = 0; k < l->n; k++)
        if (l->half[k] > 0)
            fprintf(out, "<path d=\"M%.1f %.1fV%.1f\"/>\n", pixel_x(p, l->x[k]),
                    pixel_y(p, l->y[k] - l->half[k]), pixel_y(p, l->y[k] + l->half[k]));
    fputs("<path stroke-width=\"2\" d=\"", out);
    for (uint32_t k = 0; k < l->n; k++)
        fprintf(out, "%s%.1f %.1f", k ? "L" : "M", pixel_x(p, l->x[k]), pixel_y(p, l->y[k]));
    fputs("\"/>\n", out);
    for (uint32_t k = 0; k < l->n; k++)
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"%s\"/>\n",
                pixel_x(p, l->x[k]), pixel_y(p, l->y[k]), colours[i % N_COLOUR]);
    fputs("</g>\n", out);
}

/* ---- names ---------------------------------------------------------------------------------- */

static int by_height(const void *a, const void *b)
{
    const double x = (*(line *const *)a)->label_y, y = (*(line *const *)b)->label_y;
    return (x > y) - (x < y);
}

/* Beside the line's end, at least a step below the name above, and the last one above the axis. */
static void place_labels(plot *p, line **sorted)
{
    for (uint32_t i = 0; i < p->n_line; i++) {
        sorted[i] = &p->lines[i];
        sorted[i]->label_y = pixel_y(p, sorted[i]->y[sorted[i]->n - 1]) + 4;
    }
    qsort(sorted, p->n_line, sizeof(line *), by_height);
    for (uint32_t i = 1; i < p->n_line; i++)
        sorted[i]->label_y = fmax(sorted[i]->label_y, sorted[i - 1]->label_y + LABEL_STEP);
    double below = BOTTOM + LABEL_STEP;
    for (uint32_t i = p->n_line; i-- > 0; below = sorted[i]->label_y)
        sorted[i]->label_y = fmin(sorted[i]->label_y, below - LABEL_STEP);
}

static void draw_label(const plot *p, uint32_t i, FILE *out)
{
    const line *l = &p->lines[i];
    char style[64];
    style_of(i, style, sizeof style);
    fprintf(out, "<path %s stroke-width=\"2\" d=\"M%d %.1fh20\"/>\n", style, RIGHT + 14,
            l->label_y - 4);
    draw_text(out, RIGHT + 40, l->label_y, "start", l->name);
}

void sweep_print_svg(const sweep *s, FILE *out)
{
    plot p = plot_of(s);
    find_ranges(&p);
    line **sorted = app_alloc(p.n_line, sizeof *sorted);
    place_labels(&p, sorted);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\">\n"
            "<style>text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}"
            ".axis{stroke:#222;fill:none}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_axes(&p, out);
    for (uint32_t i = 0; i < p.n_line; i++) draw_line(&p, i, out);
    for (uint32_t i = 0; i < p.n_line; i++) draw_label(&p, i, out);
    fputs("</svg>\n", out);
    for (uint32_t i = 0; i < p.n_line; i++) {
        free(p.lines[i].x);
        free(p.lines[i].y);
        free(p.lines[i].half);
    }
    free(p.lines);
    free(sorted);
}
