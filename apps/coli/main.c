/* main.c - coli: the commands and how each is explained. */
#include <stdio.h>

#include "commands.h"
#include "options.h"
#include "terminal.h"

static int cmd_help(const app_settings *s);

enum { ANY_NUMBER = 1 << 20 };

static const app_command commands[] = {
    {.name = "chat",
     .bit = APP_CHAT,
     .synopsis = "[options]",
     .summary = "Talk with a model",
     .text = "Answers appear as they are made; thinking is dimmed.  Ctrl-C stops an answer, and "
             "once more\n"
             "within two seconds leaves; at the prompt it drops the line, twice on an empty one "
             "leaves;\n"
             "Ctrl-D leaves.  Several pasted lines are one message; Alt-Enter starts a new line by "
             "hand.\n"
             "When standard input is no terminal, each line of it is a message.\n\n"
             "in the conversation:\n"
             "  :help   what can be typed\n"
             "  :reset  forget the conversation\n"
             "  :quit   leave\n"
             "  ::text  say something that starts with a colon\n",
     .examples = "  coli chat\n"
                 "  coli chat --no-think --temp 0\n"
                 "  coli chat --system \"Answer in Italian.\" --ctx 2048\n"
                 "  printf 'Hello!\\nWhat is 17 + 25?\\n' | coli chat --no-think\n",
     .run = cmd_chat},
    {.name = "run",
     .bit = APP_RUN,
     .synopsis = "[options] PROMPT | -",
     .summary = "Ask one question",
     .text = "The answer goes to stdout, everything else to stderr.  With - the prompt is standard "
             "input;\n"
             "so it is when no prompt is given and standard input is no terminal.\n",
     .examples = "  coli run \"What is the capital of France?\"\n"
                 "  coli run --no-think --temp 0 \"What is 17 + 25?\" > answer.txt\n"
                 "  coli run -n 200 --seed 7 \"Tell me a story about a fox.\"\n"
                 "  coli run - < question.txt\n",
     .max_arg = ANY_NUMBER,
     .run = cmd_run},
    {.name = "info",
     .bit = APP_INFO,
     .synopsis = "[options] [DIR]",
     .summary = "Tell what a model is",
     .text = "With --settings it takes the options of `coli run` and tells what they come to.\n",
     .examples = "  coli info\n"
                 "  coli info models/hummingbird\n"
                 "  coli info --json\n"
                 "  CTX=2048 coli info --settings --temp 0\n",
     .max_arg = 1,
     .run = cmd_info},
    {.name = "plan",
     .bit = APP_PLAN,
     .synopsis = "[options] [DIR | FILE]",
     .summary = "Tell what would sit where, whether memory is enough, and how fast it would be",
     .text = "Nothing is loaded: sizes are read off the model's tables, and devices are asked how "
             "much memory they\n"
             "have.  It takes the options of `coli run` that decide it.  Without a device, --vram "
             "plans for one that\n"
             "is bought tomorrow.  A directory with a config.json alone is planned as if it had been "
             "converted to\n"
             "--experts and --trunk, and so is a GGUF file, by the tensors that it has.  In a second or two "
             "it measures\n"
             "memory, disk and devices, and says what speed to expect.  Exit code 0: it can run; 1: memory "
             "is not\n"
             "enough, and what to change.\n",
     .examples = "  coli plan\n"
                 "  coli plan Qwen3.6-35B-A3B --experts int8\n"
                 "  coli plan Qwen3.6-35B-A3B-Q4_K_M.gguf\n"
                 "  coli plan qwen36-int4 --ctx 16384\n"
                 "  coli plan qwen36-int4 --vram 8GiB --json\n"
                 "  coli plan qwen36-int4 && coli chat --model qwen36-int4\n",
     .max_arg = 1,
     .run = cmd_plan},
    {.name = "doctor",
     .bit = APP_DOCTOR,
     .synopsis = "[options] [DIR]",
     .summary = "Look at everything that coli needs, and say what to do",
     .text = "Processor, memory and its limits, the disk, GPUs and backends, the terminal, the "
             "directories that are\n"
             "written to, and the model: a line each, ok, note or problem, and what to do.  It takes "
             "the options of\n"
             "`coli run`, to look at what these need.  Exit code 0: coli can be used; 1: it cannot.\n",
     .examples = "  coli doctor\n"
                 "  coli doctor qwen36-int4\n"
                 "  coli doctor --backend cuda --json\n",
     .max_arg = 1,
     .run = cmd_doctor},
    {.name = "report",
     .bit = APP_REPORT,
     .synopsis = "[options] [ERROR...]",
     .summary = "Print what a bug report needs, without anything personal",
     .text = "Versions, processor, memory, backends, the model's identity and shape, the settings, "
             "and the error if\n"
             "you paste it.  Names of people and machines and the directories of paths are left out; "
             "read it all the\n"
             "same before you post it.  It takes the options of `coli run`: give those that you used.\n",
     .examples = "  coli report\n"
                 "  coli report --model qwen36-int4 --backend cuda > report.txt\n"
                 "  coli report \"coli: model.coli: tensor x: ...\"\n",
     .max_arg = ANY_NUMBER,
     .run = cmd_report},
    {.name = "convert",
     .bit = APP_CONVERT,
     .synopsis = "[options] SRC OUT",
     .summary = "Make a container out of a Hugging Face checkpoint or a GGUF file",
     .text =
         "SRC is a directory with config.json, tokenizer.json and *.safetensors (bf16, f16, f32, "
         "or fp8 with\n"
         "scales per tile), or a .gguf file (of a split one any part).  OUT must not exist, and "
         "does not until\n"
         "everything is written.  Memory: at most 256 MiB.  Disk: what is needed is compared with "
         "what is free\n"
         "before anything is written.  Ctrl-C stops it and leaves nothing behind.\n"
         "\n"
         "When it is killed, or the power fails, OUT.partial stays, and the same command goes on "
         "with it.  With\n"
         "other options or a changed source it says what differs, and begins anew.\n"
         "\n"
         "A GGUF file is quantised already.  Without --experts, --trunk and --group its Q8_0 "
         "stays what it\n"
         "is, as int8 in groups of 32, and its Q4_0 becomes int4 in groups of 32; what became "
         "of each kind\n"
         "is said at the end.  A directory with qwen36_meta.json is a container of merged experts: "
         "its int4\n"
         "and int8 stay what they are, with f32 scales.\n"
         "\n"
         "What rounding cost is said for each kind of tensor, and which ten suffered most.  A "
         "recipe gives more\n"
         "bits to those; an imatrix makes rounding spare what matters.\n",
     .examples = "  coli convert Qwen3.6-35B-A3B qwen36-int4\n"
                 "  coli convert Qwen3.6-35B-A3B qwen36-small --recipe small --imatrix "
                 "qwen36.imatrix\n"
                 "  coli convert Qwen3.6-35B-A3B qwen36-mine --recipe mine.txt\n"
                 "  coli convert Qwen3.6-35B-A3B qwen36-int8 --experts int8 --trunk int8\n"
                 "  coli convert Qwen3.6-35B-A3B qwen36-g32 --experts int4 --group 32\n"
                 "  coli convert tiny tiny-f32 --experts f32 --trunk f32\n"
                 "  coli convert Qwen3.6-35B-A3B-Q8_0.gguf qwen36-q8\n",
     .min_arg = 2,
     .max_arg = 2,
     .run = cmd_convert},
    {.name = "imatrix",
     .bit = APP_IMATRIX,
     .synopsis = "[options] OUT TEXTS",
     .summary = "Find out which columns matter, for `coli convert --imatrix`",
     .text =
         "Reads TEXTS with the model, a file or a directory: *.txt, or *.jsonl with an item "
         "{\"text\": ...} a\n"
         "line, and writes to OUT how large the numbers are that each column of each matrix is "
         "multiplied with,\n"
         "for each expert, too.  Take a good container of the model (--recipe exact, or int8) and "
         "texts like those\n"
         "that it is for; some 100,000 tokens are plenty.  OUT must not exist, and does not until "
         "everything is\n"
         "read.  It is computed on the processor.\n",
     .examples = "  coli imatrix hummingbird.imatrix calibration.txt\n"
                 "  coli imatrix --model qwen36-int8 qwen36.imatrix texts --every 4\n",
     .min_arg = 2,
     .max_arg = 2,
     .run = cmd_imatrix},
    {.name = "verify",
     .bit = APP_VERIFY,
     .synopsis = "[options] [DIR | FILE]",
     .summary = "Check every byte of a container, or of a pack",
     .text =
         "Reads all of it: checksums, scales, weights, and whether tokenizer and settings can be\n"
         "used.  Exit code 0: all is well, and the model opens; 2: it is not.\n",
     .examples = "  coli verify models/hummingbird\n"
                 "  coli verify qwen36-int4.tar\n"
                 "  coli verify qwen36-int4 && rm -r Qwen3.6-35B-A3B\n",
     .max_arg = 1,
     .run = cmd_verify},
    {.name = "pack",
     .bit = APP_PACK,
     .synopsis = "[options] DIR FILE",
     .summary = "Make one file of a container, to send it",
     .text = "FILE is a tar archive with checksums, which `tar` can open, too.  The container is "
             "verified first.  FILE\n"
             "must not exist, and does not until it is complete.\n",
     .examples = "  coli pack qwen36-int4 qwen36-int4.tar\n"
                 "  coli verify qwen36-int4.tar\n",
     .min_arg = 2,
     .max_arg = 2,
     .run = cmd_pack},
    {.name = "unpack",
     .bit = APP_UNPACK,
     .synopsis = "[options] FILE DIR",
     .summary = "Make a container of such a file",
     .text = "Everything is checked on the way.  DIR must not exist, and does not until all of it is "
             "there and right.\n",
     .examples = "  coli unpack qwen36-int4.tar qwen36-int4\n",
     .min_arg = 2,
     .max_arg = 2,
     .run = cmd_unpack},
    {.name = "synth",
     .bit = APP_SYNTH,
     .synopsis = "[options] OUT",
     .summary = "Write a model with random weights, to measure with",
     .text = "The container has the geometry of a real model: the same matrices, formats and "
             "routing.  It has no\n"
             "tokenizer and takes ids only.  OUT must not exist, and does not until everything is "
             "written; the\n"
             "same options and seed give the same bytes.\n",
     .examples = "  coli synth --layers 4 bench-4\n"
                 "  coli synth --like qwen36-35b --layers 12 --seed 7 bench-12\n"
                 "  coli synth --like qwen36-397b --layers 4 --experts-n 64 --vocab 8192 big\n"
                 "  coli synth --like hummingbird --experts int8 --skew 2 small\n"
                 "  coli synth --layers 2 --hidden 1024 --experts-n 64 --used 4 --inner 256 odd\n",
     .min_arg = 1,
     .max_arg = 1,
     .run = cmd_synth},
    {.name = "bench",
     .bit = APP_BENCH,
     .synopsis = "[options]",
     .summary = "Measure a model and the machine under it",
     .text =
         "Prefill and decode in turns, tokens drawn at random; the machine's own reading speed "
         "and integer\n"
         "peak are measured in the same turns, so what else runs weighs on all alike.\n\n"
         "With --quality it measures how good the answers are.  Items stand in *.jsonl, one a "
         "line:\n"
         "  {\"text\": ...}                              perplexity\n"
         "  {\"ctx\": ..., \"endings\": [...], \"label\": 2}  which ending is likeliest "
         "(HellaSwag's "
         "layout)\n"
         "  {\"messages\": [...], \"answer\": ...}       the greedy answer must be this one\n"
         "A \"topic\" or \"task\" makes a line of its own in the result; *.txt is cut into pieces "
         "of text.\n\n"
         "--compare A B tells what a setting costs.  A and B are options in quotes, \"\" for none, "
         "or a file\n"
         "that --record wrote.  Each loss comes with its 95 % interval: within the limit passes, "
         "beyond it\n"
         "fails, on both sides of it more items are needed.  Exit code 0: pass; 3: fail; 4: "
         "undecided.\n",
     .examples = "  coli bench\n"
                 "  coli bench --model bench-4 --prefill 512 --decode 32 --repeat 5\n"
                 "  coli bench --model bench-4 --prefill 0 --context 4096 --phases\n"
                 "  coli bench --json --threads 1 --isa avx2\n"
                 "  coli bench --quality tasks --every 4\n"
                 "  coli bench --quality tasks/hellaswag.jsonl --model qwen36-int8 --record "
                 "int8.scores\n"
                 "  coli bench --quality tasks --compare \"--model qwen36-int8\" \"--model "
                 "qwen36-int4\"\n"
                 "  coli bench --quality tasks --compare int8.scores \"\" --limit "
                 "ppl=0.5%,choice=1%\n",
     .run = cmd_bench},
    {.name = "backend",
     .bit = APP_BACKEND,
     .synopsis = "list | info [options] [NAME | FILE], or check [options] FILE",
     .summary = "Tell which GPUs can be used, and why others cannot; check a backend",
     .text =
         "A backend is a file coli_NAME.so.  `list` shows those that are found and what is wrong "
         "with the\n"
         "others, and runs none of them; `info` asks them for their devices.  With NAME or FILE "
         "only that\n"
         "one is looked at, and the exit code is 2 when it cannot be used.  A file has a slash "
         "in its\n"
         "name: ./coli_x.so.\n\n"
         "`check` is for who writes one: it tries whether FILE keeps the contract of "
         "coli/backend.h, a line\n"
         "per case, and names what is wrong.  Exit code 0: nothing; 1: something; 2: it cannot be "
         "checked.\n",
     .examples = "  coli backend list\n"
                 "  coli backend info\n"
                 "  coli backend info cuda --json\n"
                 "  coli backend list ./build/lib/coli_vulkan.so\n"
                 "  coli backend check ./coli_x.so\n"
                 "  coli backend check ./coli_x.so --only numbers --seed 7\n",
     .min_arg = 1,
     .max_arg = 2,
     .run = cmd_backend},
    {.name = "heat",
     .bit = APP_HEAT,
     .synopsis = "show [--json] FILE, merge OUT FILE..., reset FILE, or import [options] OUT FILE",
     .summary = "Look after files of learned heat",
     .text = "A heat file says how much each expert of a model was used so far; it belongs to that "
             "model.\n"
             "`show` tells what is in one, `merge` adds up files of one model, `reset` forgets all "
             "uses, and\n"
             "`import` makes one of a heat file of the older format, which does not say of what "
             "model it is:\n"
             "--model does.  What is no heat file, or one of another model, is refused and left "
             "alone.\n",
     .examples = "  coli heat show heat.bin\n"
                 "  coli heat show heat.bin --json\n"
                 "  coli heat merge all.bin monday.bin tuesday.bin\n"
                 "  coli heat merge all.bin all.bin wednesday.bin\n"
                 "  coli heat reset heat.bin\n"
                 "  coli heat import heat.bin old-heat.bin --model qwen36-int4\n",
     .min_arg = 2,
     .max_arg = ANY_NUMBER,
     .run = cmd_heat},
    {.name = "replay",
     .bit = APP_REPLAY,
     .synopsis = "[options] TRACES",
     .summary = "Try placement policies on recorded routing",
     .text =
         "TRACES.safetensors holds the experts that the tokens of some prompts and their answers "
         "used, and\n"
         "TRACES.json beside it says where each answer begins.  Every prompt is run through every "
         "policy: how\n"
         "many of the answer's experts would have been in VRAM, what had to be moved, and how long "
         "it would\n"
         "have taken on a machine that is made up, the same on every computer.\n\n"
         "policies, and what they know:\n"
         "  uniform        nothing: any experts\n"
         "  foreign        heat of six prompts of other topics; all that move experts start there\n"
         "  others         heat of all other prompts\n"
         "  same           heat of this very prompt and its answer\n"
         "  slow           a slow swap by heat every 16 tokens\n"
         "  prefill        the prompt: its most used experts\n"
         "  replan         swaps by the prompt's counts (--cap, --drain, --min-count)\n"
         "  replan-late    the same, all layers at once when the prompt is done\n"
         "  replan-tail    the same, late rows of the prompt counting more\n"
         "  replan-prior   the same, with heat as a prior\n"
         "  replan-cost    the same, as many swaps as the machine affords\n"
         "  replan-hold    the same, swaps waiting for a link that is idle\n"
         "  replan-online  a re-plan, then corrections while tokens are decoded\n"
         "  online-cost    the same, as many swaps as the machine affords\n"
         "  online         corrections without a re-plan\n"
         "  lru            the prompt's set, then each miss is uploaded\n"
         "  class-lru      the same, but rarely used experts go first\n"
         "  oracle         the future: the answer's most used experts\n"
         "  belady         the future: who goes is used again last\n\n"
         "the machine, --machine 'KEY=VALUE ...':\n"
         "  link=12GB/s latency=10us   of the one copy engine; link=0: uploads take no time\n"
         "  bw=400GB/s kernel=5us      the device reads weights; launches a kernel\n"
         "  cpu=25GB/s mac=200G        the processor reads weights; multiply-adds per second\n"
         "  expert=1671168 expert-mac=3145728 width=2048  a routed expert; d_model\n"
         "  trunk=27ms row=9ms         all else, per token of an answer; per token of a prompt\n"
         "  copies=1 slow=1 waits=0    transfers of an expert; how many times as long each takes; "
         "whether the host\n"
         "                             waits for it\n",
     .examples = "  coli replay traces\n"
                 "  coli replay traces --policy foreign,replan,belady --residency 37.5%\n"
                 "  coli replay traces --policy replan --cap 6,12,24,none --drain 4,48\n"
                 "  coli replay traces --allowance 24,48,96,none --residency 96 --svg moves.svg\n"
                 "  coli replay traces --machine 'link=3GB/s copies=6 waits=1' --csv -\n",
     .min_arg = 1,
     .max_arg = 1,
     .run = cmd_replay},
    {.name = "tokenize",
     .bit = APP_TOKENIZE,
     .synopsis = "[options] [TEXT...]",
     .summary = "Show the tokens of a text",
     .text = "Without TEXT it reads standard input.  With --jsonl, standard input holds lines "
             "{\"text\": ...}\n"
             "and each gives {\"ids\": [...], \"decoded\": ...}, or {\"error\": ...}; after an "
             "error the exit\n"
             "code is 2.  Special tokens in the text are recognised unless --plain is given.\n",
     .examples = "  coli tokenize \"Hello, world!\"\n"
                 "  coli tokenize --tokenizer tokenizer.json < chapter.txt\n"
                 "  echo '{\"text\": \"<|im_start|>user\"}' | coli tokenize --jsonl\n",
     .max_arg = ANY_NUMBER,
     .run = cmd_tokenize},
    {.name = "render",
     .bit = APP_RENDER,
     .synopsis = "--jsonl [options]",
     .summary = "Show the prompt that a conversation becomes",
     .text = "Standard input holds lines {\"template\": \"3.6\", \"messages\": [...], \"options\": "
             "{...}} and each\n"
             "gives {\"text\": ...}, or {\"error\": ...} where the template refuses.  Options are "
             "tools,\n"
             "enable_thinking, preserve_thinking and add_generation_prompt.  The exit code is 2 "
             "only after a\n"
             "line that is no such object.\n",
     .examples = "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | coli "
                 "render --jsonl\n"
                 "  coli render --jsonl --template 3.5 < conversations.jsonl\n",
     .run = cmd_render},
    {.name = "help",
     .bit = APP_HELP,
     .synopsis = "[COMMAND | environment]",
     .summary = "Explain a command",
     .examples = "  coli help run\n"
                 "  coli help environment\n",
     .max_arg = 1,
     .run = cmd_help},
};

static const app_program program = {
    .name = "coli",
    .summary = "Mixture-of-Experts language models on machines whose GPU is too small for them",
    .commands = commands,
    .n_command = sizeof commands / sizeof *commands,
};

static int cmd_help(const app_settings *s)
{
    return app_help(&program, s->n_arg ? s->args[0] : NULL, stdout) ? APP_OK : APP_BAD;
}

int main(int argc, char **argv)
{
    app_terminal_init(program.name);
    return app_terminal_finish(app_main(&program, argc, argv));
}
