// exact.glsl - the part of coli/exact.h that a device needs, operation by operation.
//
// Every product and sum of floats is `precise`: rounded once, never fused, never reordered.  The
// execution modes below ask for rounding to nearest even and for honest zeros, and, in the variants
// for devices that can, for denormals.  There is no division and no function of GLSL in here that
// computes with floats.
#extension GL_EXT_spirv_intrinsics : require

spirv_execution_mode(capabilities = [4467], 4462, 32); // RoundingModeRTE
spirv_execution_mode(capabilities = [4466], 4461, 32); // SignedZeroInfNanPreserve
#ifdef DENORM_PRESERVE
spirv_execution_mode(capabilities = [4464], 4459, 32); // DenormPreserve
#endif

const float ROUNDING = 12582912.0; // 0x1.8p23: adding it leaves the nearest integer in the low bits
const uint ROUNDING_BITS = 0x4B400000u;

// coli_f16_to_f32.  (unpackHalf2x16 may flush denormals.)
float f16_to_f32(uint h)
{
    const uint exponent = h >> 10 & 31u, mantissa = h & 0x3FFu;
    precise float small = float(mantissa) * uintBitsToFloat(0x33800000u); // 0x1p-24
    const uint large = (exponent + 112u) << 23 | mantissa << 13;
    return uintBitsToFloat((h & 0x8000u) << 16 | (exponent == 0u ? floatBitsToUint(small) : large));
}

// coli_recip
float recip(float d)
{
    precise float r = uintBitsToFloat(0x7EF311C7u - floatBitsToUint(d));
    r = r * (2.0 - d * r);
    r = r * (2.0 - d * r);
    r = r * (2.0 - d * r);
    return r;
}

// coli_exp, for -80 <= x <= 80: nothing to clamp, and nothing below 2^-126 to flush
float exp_80(float x)
{
    precise float t = x * uintBitsToFloat(0x3FB8AA3Bu) + ROUNDING; // 0x1.715476p0
    precise float n = t - ROUNDING;
    precise float r = (x - n * uintBitsToFloat(0x3F318000u)) - // 0x1.63p-1
                      n * uintBitsToFloat(0xB95E8083u);        // -0x1.bd0106p-13
    precise float p = uintBitsToFloat(0x395092EEu);              // 0x1.a125dcp-13
    p = p * r + uintBitsToFloat(0x3AB6A216u);                    // 0x1.6d442cp-10
    p = p * r + uintBitsToFloat(0x3C088870u);                    // 0x1.1110ep-7
    p = p * r + uintBitsToFloat(0x3D2AAA74u);                    // 0x1.5554e8p-5
    p = p * r + uintBitsToFloat(0x3E2AAAABu);                    // 0x1.555556p-3
    p = p * r + 0.5;
    p = (p * (r * r) + r) + 1.0;
    return uintBitsToFloat(floatBitsToUint(p) + (floatBitsToUint(t) - ROUNDING_BITS << 23));
}

// coli_silu of a finite number
float silu(float x)
{
    const float low = x < -80.0 ? -80.0 : x;
    const float clamped = low > 80.0 ? 80.0 : low;
    precise float denominator = 1.0 + exp_80(-clamped);
    precise float y = x * recip(denominator);
    return y;
}
