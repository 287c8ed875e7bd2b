/* pack_codes.c - see pack_codes.h; the layout is drawn in matrix.h. */
#include "pack_codes.h"

#include <string.h>

#include "kernels_impl.h"

static void store_code(coli__wfmt fmt, uint8_t *codes, uint32_t r, uint32_t c, int32_t code)
{
    if (fmt.type == COLI_W_I8) {
        codes[c / 4 * 64 + 4 * r + c % 4] = (uint8_t)(code + 128);
        return;
    }
    uint8_t *byte = &codes[c / 8 * 64 + 4 * r + c % 4];
    const uint32_t half = (uint32_t)(code + 8);
    *byte = (uint8_t)(c / 4 % 2 == 0 ? (*byte & 0xF0u) | half : (*byte & 0x0Fu) | half << 4);
}

void coli__mat_pack_codes(coli__wfmt fmt, const int8_t *codes, const float *scales, uint32_t n_row,
                          uint32_t n_in, uint8_t *out)
{
    const coli__layout l = coli__layout_of(fmt, n_in);
    memset(out, fmt.type == COLI_W_I4 ? 0x88 : 0x80, (size_t)l.panel_bytes); // every code 0
    for (uint64_t g = 0; g < (fmt.per_row ? 1 : l.n_group); g++)
        memset(out + g * l.group_bytes, 0, (size_t)l.scale_bytes);
    for (uint32_t r = 0; r < n_row; r++, codes += n_in) {
        if (fmt.per_row) memcpy(out + 4 * r, scales++, sizeof *scales);
        for (uint64_t g = 0; g < l.n_group; g++) {
            uint8_t *group = out + l.first_group + g * l.group_bytes;
            if (!fmt.per_row) memcpy(group + 4 * r, scales++, sizeof *scales);
            const uint32_t begin = (uint32_t)(g * fmt.group);
            const uint32_t n = n_in - begin < fmt.group ? n_in - begin : fmt.group;
            for (uint32_t c = 0; c < n; c++)
                store_code(fmt, group + l.code_offset, r, c, codes[begin + c]);
        }
    }
}
