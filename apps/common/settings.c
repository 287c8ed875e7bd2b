/* settings.c - the tables of settings.h. */
#include "settings.h"

enum {
    GENERATE = APP_CHAT | APP_RUN,
    COMPUTE =
        GENERATE | APP_INFO | APP_QWEN36, // open the model to run it, or to say how it would run
    MEASURE = APP_QWEN36,
    DEVICES = COMPUTE | APP_BENCH,
    ALL = (APP_REPLAY << 1) - 1
};

#define FIELD(name) offsetof(app_settings, name)

// clang-format off
const app_option app_options[APP_N_OPTION] = {
    [APP_OPT_MODEL] = {"model", "DIR", APP_TEXT, FIELD(model), 0, 0, NULL, "the model that ships with coli",
        COMPUTE | APP_TOKENIZE | APP_VERIFY | APP_BENCH, "directory of the model"},
    [APP_OPT_THREADS] = {"threads", "N", APP_U32, FIELD(threads), 0, 1024, NULL, "0, one per processor",
        COMPUTE | APP_CONVERT | APP_SYNTH | APP_BENCH | APP_REPLAY, "compute threads"},
    [APP_OPT_ISA] = {"isa", "NAME", APP_CHOICE, FIELD(isa), 0, 0, "scalar|avx2|avxvnni|avx512|neon|i8mm",
        "the best there is", COMPUTE | APP_BENCH,
        "instruction set of the kernels; all give the same bytes"},
    [APP_OPT_CTX] = {"ctx", "N", APP_U32, FIELD(ctx), 0, 1048576, NULL,
        "0, what the model was made for, at most 32768", COMPUTE, "most tokens of a conversation"},
    [APP_OPT_CHUNK] = {"chunk", "N", APP_U32, FIELD(chunk), 0, 4096, NULL, "0, the library's choice",
        COMPUTE | APP_BENCH,
        "most prompt tokens computed together; the answer is the same with any"},

    [APP_OPT_BACKEND] = {"backend", "NAME|PATH", APP_TEXT, FIELD(backend), 0, 0, NULL, "a GPU, if one works", DEVICES,
        "compute on the devices of this backend, by name (cuda, vulkan) or file; none: the processor "
        "alone; all give the same bytes"},
    [APP_OPT_BACKEND_PATH] = {"backend-path", "DIRS", APP_TEXT, FIELD(backend_path), 0, 0, NULL,
        "those of the installation", DEVICES | APP_BACKEND, "directories where backends are looked for first"},
    [APP_OPT_BACKEND_OPTIONS] = {"backend-options", "TEXT", APP_TEXT, FIELD(backend_options), 0, 0, NULL, "none",
        DEVICES | APP_BACKEND, "what to tell the backend; it says what it understands"},
    [APP_OPT_DEVICES] = {"devices", "LIST", APP_ORDINALS, FIELD(devices), 0, 0, NULL, "all that can be used", DEVICES,
        "which of its devices: `coli backend info` numbers them"},
    [APP_OPT_VRAM] = {"vram", "SIZE|N%", APP_VRAM, FIELD(vram), 0, 0, NULL, "auto, what is free less 1 GiB", DEVICES,
        "memory that the model may take on each device, or as much as N percent of the experts need"},
    [APP_OPT_VRAM_TRUNK] = {"vram-trunk", NULL, APP_FLAG, FIELD(vram_trunk), 0, 0, NULL, NULL, DEVICES,
        "put the dense matrices on the first device, before the experts"},
    [APP_OPT_DEVICE] = {"device", "N", APP_U32, FIELD(device), 0, 65535, NULL, "0", APP_BACKEND,
        "check: which of its devices"},
    [APP_OPT_ONLY] = {"only", "CASE", APP_TEXT, FIELD(only), 0, 0, NULL, "all", APP_BACKEND,
        "check: one case, like W1, or one family, like numbers"},

    [APP_OPT_SYSTEM] = {"system", "TEXT", APP_TEXT, FIELD(system), 0, 0, NULL, "none", GENERATE | APP_INFO,
        "system message"},
    [APP_OPT_NO_THINK] = {"no-think", NULL, APP_FLAG, FIELD(no_think), 0, 0, NULL, NULL,
        GENERATE | APP_INFO, "answer at once, without a think block"},
    [APP_OPT_PRESERVE_THINKING] = {"preserve-thinking", NULL, APP_FLAG, FIELD(preserve_thinking), 0, 0,
        NULL, NULL, APP_CHAT, "keep the think blocks of earlier turns in the conversation"},
    [APP_OPT_NO_HISTORY] = {"no-history", NULL, APP_FLAG, FIELD(no_history), 0, 0, NULL, NULL, APP_CHAT,
        "neither read nor write the file of lines typed earlier"},

    [APP_OPT_N] = {"n", "N", APP_U32, FIELD(n), 0, 16777216, NULL, "0, to the end of the context", COMPUTE,
        "most tokens of one answer, thinking included"},
    [APP_OPT_TEMP] = {"temp", "T", APP_F32, FIELD(temp), 0, 100, NULL, "the model's", GENERATE | APP_INFO,
        "temperature; 0 takes the likeliest token"},
    [APP_OPT_TOP_K] = {"top-k", "K", APP_U32, FIELD(top_k), 0, 16777216, NULL, "the model's",
        GENERATE | APP_INFO, "draw from the K likeliest tokens; 0 is off"},
    [APP_OPT_TOP_P] = {"top-p", "P", APP_F32, FIELD(top_p), 0.001, 1, NULL, "the model's", GENERATE | APP_INFO,
        "draw from the fewest tokens whose probabilities sum to P; 1 is off"},
    [APP_OPT_MIN_P] = {"min-p", "P", APP_F32, FIELD(min_p), 0, 1, NULL, "the model's", GENERATE | APP_INFO,
        "drop tokens less likely than P times the likeliest; 0 is off"},
    [APP_OPT_REP_PENALTY] = {"rep-penalty", "R", APP_F32, FIELD(rep_penalty), 0.01, 100, NULL,
        "the model's", GENERATE | APP_INFO, "make tokens seen before less likely; 1 is off"},
    [APP_OPT_PRESENCE_PENALTY] = {"presence-penalty", "R", APP_F32, FIELD(presence_penalty), -100, 100, NULL,
        "the model's", GENERATE | APP_INFO, "lower the logits of tokens of this answer by R; 0 is off"},
    [APP_OPT_SEED] = {"seed", "N", APP_U64, FIELD(seed), 0, 0, NULL, "0",
        GENERATE | APP_INFO | APP_SYNTH | APP_BENCH | APP_BACKEND | APP_REPLAY,
        "start of the random numbers: the same seed gives the same result"},

    [APP_OPT_TOKENIZER] = {"tokenizer", "FILE", APP_TEXT, FIELD(tokenizer), 0, 0, NULL, "the model's",
        APP_TOKENIZE, "a tokenizer.json, without a model"},
    [APP_OPT_PLAIN] = {"plain", NULL, APP_FLAG, FIELD(plain), 0, 0, NULL, NULL, APP_TOKENIZE,
        "take special tokens in the text as plain text"},
    [APP_OPT_JSONL] = {"jsonl", NULL, APP_FLAG, FIELD(jsonl), 0, 0, NULL, NULL, APP_TOKENIZE | APP_RENDER,
        "read and write one JSON object per line"},
    [APP_OPT_TEMPLATE] = {"template", "NAME", APP_CHOICE, FIELD(template), 0, 0, "3.6|3.5", "3.6",
        APP_RENDER, "template of lines that name none"},
    [APP_OPT_SETTINGS] = {"settings", NULL, APP_FLAG, FIELD(settings), 0, 0, NULL, NULL, APP_INFO,
        "also every setting of `coli run`, its value and where it came from"},
    [APP_OPT_JSON] = {"json", NULL, APP_FLAG, FIELD(json), 0, 0, NULL, NULL, APP_INFO | MEASURE | APP_BENCH | APP_BACKEND,
        "JSON instead of text"},
    [APP_OPT_EXPERTS] = {"experts", "FORMAT", APP_TEXT, FIELD(experts), 0, 0, NULL, "int4", APP_CONVERT | APP_SYNTH,
        "format of the routed experts: int4, int8, bf16 or f32, or in full, int4-g64-f16"},
    [APP_OPT_TRUNK] = {"trunk", "FORMAT", APP_TEXT, FIELD(trunk), 0, 0, NULL, "int8", APP_CONVERT | APP_SYNTH,
        "format of the dense matrices"},
    [APP_OPT_GROUP] = {"group", "G", APP_CHOICE, FIELD(group), 0, 0, "64|32|row", "64",
        APP_CONVERT | APP_SYNTH,
        "weights that share a scale in int4 and int8"},
    [APP_OPT_CHAT_TEMPLATE] = {"chat-template", "NAME", APP_CHOICE, FIELD(chat_template), 0, 0, "3.6|3.5",
        "as found in the checkpoint, else 3.6", APP_CONVERT, "chat template of the container"},

    [APP_OPT_PROMPT_FILE] = {"prompt-file", "FILE", APP_TEXT, FIELD(prompt_file), 0, 0, NULL, NULL, MEASURE,
        "go on from this text (no chat template; special tokens are recognised)"},
    [APP_OPT_IDS] = {"ids", "FILE", APP_TEXT, FIELD(ids), 0, 0, NULL, NULL, MEASURE,
        "go on from these ids, a JSON array; prints the new ids as one"},
    [APP_OPT_TEACHER_FORCE] = {"teacher-force", "FILE", APP_TEXT, FIELD(teacher_force), 0, 0, NULL, NULL,
        MEASURE, "feed all ids of a JSON array; prints nll and the argmax of every row"},
    [APP_OPT_PPL] = {"ppl", "FILE", APP_TEXT, FIELD(ppl), 0, 0, NULL, NULL, MEASURE,
        "perplexity of the texts of a JSONL file: objects with \"text\" and perhaps \"topic\""},
    [APP_OPT_DUMP_LOGITS] = {"dump-logits", "OUT", APP_TEXT, FIELD(dump_logits), 0, 0, NULL, NULL, MEASURE,
        "write logits, expert_ids and expert_w of every id given to a new safetensors file"},
    [APP_OPT_STOP] = {"stop", NULL, APP_FLAG, FIELD(stop), 0, 0, NULL, NULL, MEASURE,
        "end with a token that ends a turn, instead of going on past it"},

    [APP_OPT_PREFILL] = {"prefill", "N", APP_U32, FIELD(prefill), 0, 1048576, NULL, "512", APP_BENCH,
        "tokens of the prompt; 0: no prefill"},
    [APP_OPT_DECODE] = {"decode", "N", APP_U32, FIELD(decode), 0, 1048576, NULL, "32", APP_BENCH,
        "tokens made one by one; 0: no decode"},
    [APP_OPT_REPEAT] = {"repeat", "R", APP_U32, FIELD(repeat), 1, 1000, NULL, "5", APP_BENCH,
        "rounds of stream, peak, prefill and decode; median, minimum and maximum are over them"},
    [APP_OPT_CONTEXT] = {"context", "C", APP_U32, FIELD(context), 0, 1048576, NULL, "0", APP_BENCH,
        "tokens that the session holds before what is measured"},
    [APP_OPT_PHASES] = {"phases", NULL, APP_FLAG, FIELD(phases), 0, 0, NULL, NULL, APP_BENCH,
        "also the milliseconds of every phase of a token"},
    [APP_OPT_BUFFER] = {"buffer", "MIB", APP_U32, FIELD(buffer), 0, 1048576, NULL,
        "0, 2048 or eight times the last-level cache", APP_BENCH,
        "memory that is read to measure the machine's stream, in MiB"},

    [APP_OPT_LIKE] = {"like", "NAME", APP_CHOICE, FIELD(like), 0, 0, "qwen36-35b|hummingbird", "qwen36-35b",
        APP_SYNTH, "model whose geometry is taken, where no option changes it"},
    [APP_OPT_LAYERS] = {"layers", "N", APP_U32, FIELD(layers), 0, 512, NULL, "0, those of the model",
        APP_SYNTH | APP_REPLAY, "layers; every fourth has attention, the others DeltaNet"},
    [APP_OPT_HIDDEN] = {"hidden", "D", APP_U32, FIELD(hidden), 0, 65536, NULL, "0, that of the model", APP_SYNTH,
        "width of the residual stream"},
    [APP_OPT_EXPERTS_N] = {"experts-n", "E", APP_U32, FIELD(experts_n), 0, 4096, NULL, "0, those of the model",
        APP_SYNTH | APP_REPLAY, "routed experts of a layer"},
    [APP_OPT_USED] = {"used", "K", APP_U32, FIELD(used), 0, 256, NULL, "0, those of the model",
        APP_SYNTH | APP_REPLAY, "of these, how many a token uses"},
    [APP_OPT_INNER] = {"inner", "F", APP_U32, FIELD(inner), 0, 65536, NULL, "0, that of the model", APP_SYNTH,
        "inner width of an expert, the shared one included"},
    [APP_OPT_VOCAB] = {"vocab", "V", APP_U32, FIELD(vocab), 0, 16777216, NULL, "0, that of the model", APP_SYNTH,
        "rows of the embedding and of the logits"},
    [APP_OPT_SKEW] = {"skew", "Z", APP_F32, FIELD(skew), 0, 16, NULL, "0", APP_SYNTH,
        "0: experts have equal chances; else the router's rows are 1 to e^-Z long, and long ones win"},

    [APP_OPT_POLICY] = {"policy", "LIST", APP_TEXT, FIELD(policy), 0, 0, NULL, "all", APP_REPLAY,
        "policies, like lru,replan"},
    [APP_OPT_RESIDENCY] = {"residency", "LIST", APP_TEXT, FIELD(residency), 0, 0, NULL, "12.5%,25%,37.5%,50%,80%",
        APP_REPLAY, "experts of each layer in VRAM: shares, or numbers like 96"},
    [APP_OPT_AGAINST] = {"against", "POLICY", APP_TEXT, FIELD(against), 0, 0, NULL, "foreign", APP_REPLAY,
        "the policy that gains and pay-back are measured against"},
    [APP_OPT_CAP] = {"cap", "LIST", APP_TEXT, FIELD(cap), 0, 0, NULL, "24", APP_REPLAY,
        "most swaps of a re-plan per layer: numbers, or none"},
    [APP_OPT_DRAIN] = {"drain", "LIST", APP_TEXT, FIELD(drain), 0, 0, NULL, "4", APP_REPLAY,
        "swaps of a re-plan that a token of the answer may begin"},
    [APP_OPT_MIN_COUNT] = {"min-count", "LIST", APP_TEXT, FIELD(min_count), 0, 0, NULL, "1", APP_REPLAY,
        "uses in the prompt that make an expert a newcomer"},
    [APP_OPT_ALLOWANCE] = {"allowance", "LIST", APP_TEXT, FIELD(allowance), 0, 0, NULL, "none", APP_REPLAY,
        "most uploads per layer for a prompt and its answer: numbers, or none"},
    [APP_OPT_MACHINE] = {"machine", "TEXT", APP_TEXT, FIELD(machine), 0, 0, NULL, NULL, APP_REPLAY,
        "what the machine is like, where it is not as above"},
    [APP_OPT_CSV] = {"csv", "FILE", APP_TEXT, FIELD(csv), 0, 0, NULL, NULL, APP_REPLAY,
        "also write the numbers as CSV; - is standard output, without the table"},
    [APP_OPT_SVG] = {"svg", "FILE", APP_TEXT, FIELD(svg), 0, 0, NULL, NULL, APP_REPLAY,
        "also draw them: hits over residency; over what is moved, if there are several allowances at one residency"},

    [APP_OPT_HELP] = {"help", NULL, APP_FLAG, FIELD(help), 0, 0, NULL, NULL, ALL, "this text"},
    [APP_OPT_VERSION] = {"version", NULL, APP_FLAG, FIELD(version), 0, 0, NULL, NULL, ALL, "the version"},
};

static const app_other_help other_help[] = {
    {MEASURE, APP_OPT_CTX, "most tokens of a text, with those made after it",
        "0, what the model was made for, at most 32768"},
    {MEASURE, APP_OPT_N, "how many tokens to make; 0: to the end of the context", "64, none with --dump-logits"},
    {APP_REPLAY, APP_OPT_LAYERS, "take the first N layers only", "0, all"},
    {APP_REPLAY, APP_OPT_USED, "take the K best experts of each row only", "0, all that were recorded"},
    {APP_REPLAY, APP_OPT_EXPERTS_N, "experts of a layer", "0, one more than the highest that was used"},
    {APP_REPLAY, APP_OPT_SEED, "which experts are resident in the policy uniform", "0"},
    {APP_REPLAY, APP_OPT_THREADS, "compute threads; all give the same numbers", "0, one per processor"},
};

#define LATER APP_N_OPTION

const app_variable app_variables[] = {
    {"COLI_MODEL", APP_OPT_MODEL, "directory of the model", NULL},
    {"COLI_ISA", APP_OPT_ISA, "instruction set of the kernels", NULL},
    {"CTX", APP_OPT_CTX, "most tokens of a conversation", NULL},
    {"NGEN", APP_OPT_N, "most tokens of one answer", NULL},
    {"COLI_TEMP", APP_OPT_TEMP, "temperature", NULL},
    {"NUCLEUS", APP_OPT_TOP_P, "top-p", NULL},
    {"SEED", APP_OPT_SEED, "start of the random numbers", NULL},
    {"COLI_BACKEND", APP_OPT_BACKEND, "backend by name or file, or none", NULL},
    {"COLI_CUDA", APP_OPT_BACKEND, "1: the backend cuda; 0: not that one", "cuda"},
    {"COLI_VULKAN", APP_OPT_BACKEND, "1: the backend vulkan; 0: not that one", "vulkan"},
    {"COLI_BACKEND_PATH", APP_OPT_BACKEND_PATH, "directories of backends", NULL},
    {"COLI_BACKEND_OPTIONS", APP_OPT_BACKEND_OPTIONS, "what to tell the backend", NULL},
    {"COLI_FAKE", APP_OPT_BACKEND_OPTIONS, "the same, for the backend fake", "fake"},
    {"COLI_GPUS", APP_OPT_DEVICES, "which devices", NULL},
    {"CUDA_EXPERT_GB", APP_OPT_VRAM, "memory on each device, for the backend cuda", "cuda"},
    {"VK_EXPERT_GB", APP_OPT_VRAM, "memory on each device, for the backend vulkan", "vulkan"},
    {"COLI_PLACE", LATER, "where the dense trunk lives", NULL},
    {"HEAT_FILE", LATER, "learned heat of the experts", NULL},
    {"QT_PREFILL_REPLAN", LATER, "re-plan the residents during prefill", NULL},
    {"QT_PREFILL_REPLAN_MAX", LATER, "most swaps per layer and prompt", NULL},
    {"QT_NO_WARMSTART", LATER, "start with empty VRAM", NULL},
    {"QT_HOME", LATER, "home devices by expert or by layer", NULL},
    {"CACHE_ROUTE", LATER, "cache-aware routing", NULL},
    {"ROUTE_J", LATER, "ranks that are never swapped", NULL},
    {"ROUTE_M", LATER, "window of ranks", NULL},
    {"ROUTE_P", LATER, "window by probability mass", NULL},
    {"ROUTE_ALPHA", LATER, "window by factor", NULL},
    {"ROUTE_AGREE", LATER, "meter the agreement with plain routing", NULL},
    {"PILOT", LATER, "prefetch of the next layer", NULL},
    {"PIN", LATER, "file of experts to pin in RAM", NULL},
    {"PIN_GB", LATER, "RAM for pinned experts", NULL},
    {"RAM_GB", LATER, "RAM for the model", NULL},
};
const uint32_t app_n_variable = sizeof app_variables / sizeof *app_variables;

const app_variable app_system_variables[] = {
    {"NO_COLOR", LATER, "no colours when set to anything", NULL},
    {"TERM", LATER, "\"dumb\": no colours, no pasting of several lines", NULL},
    {"XDG_STATE_HOME", LATER, "the history of chat is in coli/history there", NULL},
    {"HOME", LATER, "else in .local/state/coli/history here", NULL},
};
const uint32_t app_n_system_variable = sizeof app_system_variables / sizeof *app_system_variables;
// clang-format on

const app_other_help *app_other_help_of(app_option_id id, uint32_t command)
{
    for (size_t i = 0; i < sizeof other_help / sizeof *other_help; i++)
        if (other_help[i].option == id && other_help[i].commands & command) return &other_help[i];
    return NULL;
}
