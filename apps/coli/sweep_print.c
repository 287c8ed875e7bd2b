/* sweep_print.c - a table for people, CSV for programs. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "sweep.h"
#include "terminal.h"

double sweep_share(const sweep *s, uint32_t n_resident)
{
    return (double)n_resident / s->traces.n_expert;
}

double sweep_mb(const sweep *s, double per_layer)
{
    return per_layer * s->traces.n_layer * (double)s->machine.expert_bytes * 1e-6;
}

/* ---- means --------------------------------------------------------------------------------- */

/* Student's t for 95 %, by degrees of freedom from 1; for more, 1.96 + 2.4 / df. */
static double student(uint32_t df)
{
    static const double t[] = {12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                               2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                               2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
    enum { N = sizeof t / sizeof *t };
    return df <= N ? t[df - 1] : 1.96 + 2.4 / df;
}

sweep_mean sweep_mean_of(const double *values, uint32_t n)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) sum += values[i];
    const double mean = sum / n;
    for (uint32_t i = 0; i < n; i++) squares += (values[i] - mean) * (values[i] - mean);
    if (n < 2) return (sweep_mean){mean, 0};
    return (sweep_mean){mean, student(n - 1) * sqrt(squares / (n - 1) / n)};
}

/* ---- text ---------------------------------------------------------------------------------- */

static void pay_back_text(double tokens, char *out, size_t cap)
{
    if (tokens <= 0)
        snprintf(out, cap, "at once");
    else if (isinf(tokens))
        snprintf(out, cap, "never");
    else
        snprintf(out, cap, "%.0f tok", ceil(tokens));
}

static void print_point(const sweep *s, const sweep_point *p)
{
    char pay_back[32];
    pay_back_text(p->pay_back, pay_back, sizeof pay_back);
    printf("  %-34s %5.1f ±%4.1f  %+6.1f ±%4.1f %9.1f %9.2f %8.2f %9.1f  %s\n", p->variant->label,
           p->hit.mean * 100, p->hit.half * 100, p->gain.mean * 100, p->gain.half * 100,
           sweep_mb(s, p->prompt_uploads.mean), sweep_mb(s, p->token_uploads.mean),
           p->token_ms.mean, p->ttft_ms.mean,
           strcmp(p->variant->label, s->reference.policy.name) == 0 ? "" : pay_back);
}

void sweep_print_table(const sweep *s)
{
    app_line(stdout,
             "%s: %" PRIu32 " prompts, %" PRIu32 " layers, %" PRIu32 " of %" PRIu32
             " experts per token; %.0f prompt and %.0f answer tokens on average",
             s->path, s->traces.n_prompt, s->traces.n_layer, s->traces.n_expert_used,
             s->traces.n_expert, (double)s->traces.n_prompt_row / s->traces.n_prompt,
             (double)s->traces.n_answer_row / s->traces.n_prompt);
    for (uint32_t i = 0; i < s->n_residency; i++) {
        printf("\n%.1f %% resident, %" PRIu32 " of each layer\n",
               sweep_share(s, s->n_resident[i]) * 100, s->n_resident[i]);
        printf("  %-34s %11s  %13s %9s %9s %8s %9s  %s\n", "policy", "hits %", "against ref.",
               "MB/prompt", "MB/token", "ms/token", "TTFT ms", "pays back");
        for (uint32_t v = 0; v < s->n_variant; v++)
            print_point(s, &s->points[i * s->n_variant + v]);
    }
    putchar('\n');
    app_line(stdout,
             "hits: share of the experts that the answer's tokens use; ± half of the 95 %% "
             "interval over "
             "prompts; ref.: %s",
             s->reference.policy.name);
}

/* ---- CSV ----------------------------------------------------------------------------------- */

static void put_limit(FILE *out, uint32_t n)
{
    if (n == SWEEP_ANY)
        fprintf(out, ",none");
    else
        fprintf(out, ",%" PRIu32, n);
}

void sweep_print_csv(const sweep *s, FILE *out)
{
    fprintf(out, "policy,resident,share,cap,drain,min_count,allowance,hit,hit_ci,gain,gain_ci,"
                 "prompt_uploads,token_uploads,prompt_mb,token_mb,token_ms,token_ms_ci,ttft_ms,"
                 "ttft_ms_ci,pay_back\n");
    for (uint32_t i = 0; i < s->n_residency * s->n_variant; i++) {
        const sweep_point *p = &s->points[i];
        const sweep_variant *v = p->variant;
        fprintf(out, "%s,%" PRIu32 ",%.4f", v->policy.name, p->n_resident,
                sweep_share(s, p->n_resident));
        put_limit(out, v->cap);
        fprintf(out, ",%" PRIu32 ",%" PRIu32, v->drain, v->min_count);
        put_limit(out, v->allowance);
        fprintf(out, ",%.4f,%.4f,%.4f,%.4f,%.3f,%.4f,%.2f,%.3f,%.3f,%.3f,%.2f,%.2f,", p->hit.mean,
                p->hit.half, p->gain.mean, p->gain.half, p->prompt_uploads.mean,
                p->token_uploads.mean, sweep_mb(s, p->prompt_uploads.mean),
                sweep_mb(s, p->token_uploads.mean), p->token_ms.mean, p->token_ms.half,
                p->ttft_ms.mean, p->ttft_ms.half);
        if (isinf(p->pay_back))
            fprintf(out, "never\n");
        else
            fprintf(out, "%.1f\n", p->pay_back > 0 ? p->pay_back : 0.0);
    }
}
