// Products of groups of four warps, copies in bulk and their barriers (sm_90a; PTX ISA, "wgmma" and "mbarrier").
//
// A group multiplies 64 x K numbers in its registers, 16 rows per warp, by K x N in shared memory. K is 32 bytes. In lane
// 4 g + t, value i of the sum is in row g + 8 (i % 4 / 2) and column 8 (i / 4) + 2 t + i % 2. Word i of the left factor is
// in row g + 8 (i % 2) and, in TF32, column t + 4 (i / 2); in bfloat16 in columns 2 t + 8 (i / 2) and the next.
// The right factor lies in cores of 8 columns x 16 bytes of K, first along the columns.
//
// A constant comes before this header: BF16, else TF32.
#pragma once

using Byte = unsigned char;
using Word = unsigned;
using Long = unsigned long long;

constexpr int BYTES = BF16 ? 2 : 4, PER_16 = 16 / BYTES, STEP = 32 / BYTES;  // of a number; numbers of 16 bytes and of a K

// ---- the right factor

// Offset of number (k, column) among N columns.
WD_FN constexpr Word place(const int column, const int k, const int n) {
  return (k / PER_16 * n + column) * 16 + k % PER_16 * BYTES;
}
// The unit's description of a factor of N columns: address, and distances of cores along K and along the columns, in 16
// bytes. Adding an offset of 16 bytes moves it.
WD_FN Word described_low(const Word address, const int n) { return (address & 0x3FFFF) >> 4 | static_cast<Word>(n) << 16; }
WD_FN Long described_at(const Word low) { return low | static_cast<Long>(8) << 32; }
WD_FN Long described(const Word address, const int n) { return described_at(described_low(address, n)); }

// ---- products

// Column of a sum that is column k of the next product's left factor.
WD_FN constexpr int column_of(const int k) { return BF16 ? k : k / 8 * 8 + k % 4 * 2 + k % 8 / 4; }

// sum += left * right, with N = 8, 48, 64, 72 or 256 columns. A left factor in shared memory lies as a right one of 64.
#define TEN(tens) "%" #tens "0,%" #tens "1,%" #tens "2,%" #tens "3,%" #tens "4,%" #tens "5,%" #tens "6,%" #tens "7,%" #tens \
                  "8,%" #tens "9"
#define TWO(i) "+f"(sum[i]), "+f"(sum[(i) + 1])
#define EIGHT(i) TWO(i), TWO(i + 2), TWO(i + 4), TWO(i + 6)
#define SUM32(i) EIGHT(i), EIGHT(i + 8), EIGHT(i + 16), EIGHT(i + 24)
#define NEW4(i) "=f"(sum[i]), "=f"(sum[(i) + 1]), "=f"(sum[(i) + 2]), "=f"(sum[(i) + 3])
#define NEW16(i) NEW4(i), NEW4(i + 4), NEW4(i + 8), NEW4(i + 12)
#define PRODUCT(N, numbers, a, b, c, d, at, ...)                                                                        \
  WD_FN void multiply(float (&sum)[N / 2], const Word (&left)[4], const Long right) {                                   \
    if constexpr (BF16)                                                                                                 \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" numbers "}, {%" #a ",%" #b ",%" #c ",%" \
                   #d "}, %" #at ", 1, 1, 1, 0;"                                                                        \
                   : __VA_ARGS__                                                                                        \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                               \
    else                                                                                                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" numbers "}, {%" #a ",%" #b ",%" #c ",%"  \
                   #d "}, %" #at ", 1, 1, 1;"                                                                           \
                   : __VA_ARGS__                                                                                        \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                               \
  }                                                                                                                     \
  WD_FN void multiply(float (&sum)[N / 2], const Long left, const Long right) {                                         \
    if constexpr (!BF16)                                                                                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" numbers "}, %" #a ", %" #b ", 1, 1, 1;"  \
                   : __VA_ARGS__                                                                                        \
                   : "l"(left), "l"(right));                                                                            \
  }
PRODUCT(8, "%0,%1,%2,%3", 4, 5, 6, 7, 8, TWO(0), TWO(2))
PRODUCT(48, TEN() "," TEN(1) ",%20,%21,%22,%23", 24, 25, 26, 27, 28, EIGHT(0), EIGHT(8), EIGHT(16))
PRODUCT(64, TEN() "," TEN(1) "," TEN(2) ",%30,%31", 32, 33, 34, 35, 36, SUM32(0))
PRODUCT(72, TEN() "," TEN(1) "," TEN(2) ",%30,%31,%32,%33,%34,%35", 36, 37, 38, 39, 40, SUM32(0), TWO(32), TWO(34))
PRODUCT(256,
        TEN() "," TEN(1) "," TEN(2) "," TEN(3) "," TEN(4) "," TEN(5) "," TEN(6) "," TEN(7) "," TEN(8) "," TEN(9) "," TEN(10)
        "," TEN(11) ",%120,%121,%122,%123,%124,%125,%126,%127",
        128, 129, 130, 131, 132, SUM32(0), SUM32(32), SUM32(64), SUM32(96))
// sum = left * right, in TF32.
WD_FN void multiply_first(float (&sum)[32], const Word (&left)[4], const Long right) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" TEN() "," TEN(1) "," TEN(2)
               ",%30,%31}, {%32,%33,%34,%35}, %36, 0, 1, 1;"
               : NEW16(0), NEW16(16)
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
#undef TEN
#undef TWO
#undef EIGHT
#undef SUM32
#undef NEW4
#undef NEW16
#undef PRODUCT

// Around products: before the first one after registers changed; behind those of one part; until all but N parts are done.
WD_FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
WD_FN void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
WD_FN void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// ---- barriers in shared memory, and copies that arrive at them

WD_FN Word shared_address(const void* const at) { return static_cast<Word>(__cvta_generic_to_shared(at)); }
WD_FN void make_barrier(const Word at, const Word n_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n_arrivals) : "memory");
}
// Lets products and copies in bulk see what this thread stored in shared memory.
WD_FN void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
WD_FN void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
WD_FN void expect_bytes(const Word at, const Word n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(n) : "memory");
}
WD_FN void arrive(const Word at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
WD_FN void await(const Word at, const Word parity) {
  Word is_done = 0;
  while (!is_done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(is_done)
                 : "r"(at), "r"(parity)
                 : "memory");
}
WD_FN void copy_in_bulk(const Word to, const void* const from, const Word n, const Word barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :
               : "r"(to), "l"(from), "r"(n), "r"(barrier)
               : "memory");
}

// A description as if it were new, so that what is added to it is not computed anew from its parts.
WD_FN Word anew(Word x) {
  asm volatile("" : "+r"(x));
  return x;
}
WD_FN Long anew(Long x) {
  asm volatile("" : "+l"(x));
  return x;
}

// ---- other accesses

WD_FN Word load_word(const float* const at, const bool is_there) {
  Word value;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
               : "=r"(value)
               : "l"(at), "r"(static_cast<int>(is_there)));
  return value;
}
WD_FN void store4(void* const at, const Word a, const Word b, const Word c, const Word d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
WD_FN void store2(void* const at, const Word a, const Word b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(a), "r"(b) : "memory");
}
// The same to shared memory.
WD_FN void store4(const Word at, const Word a, const Word b, const Word c, const Word d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
WD_FN void store2(const Word at, const Word a, const Word b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
WD_FN void store1(const Word at, const Word a) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(a) : "memory"); }
WD_FN Word shared1(const Word at) {
  Word value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
WD_FN float2 shared2(const Word at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}
WD_FN float4 shared4(const Word at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
  return v;
}
// Asynchronous copies to shared memory; zeros if the source is not there.
WD_FN void copy4(const Word to, const void* const from, const bool is_there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}
WD_FN void copy16(const Word to, const void* const from, const bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

// The same, of lanes that have a source, without a branch.
WD_FN void copy4_if(const Word to, const void* const from, const bool is_there) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4; }" ::"r"(to), "l"(from),
               "r"(static_cast<int>(is_there))
               : "memory");
}
WD_FN void copy16_if(const Word to, const void* const from, const bool is_there) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(to), "l"(from),
               "r"(static_cast<int>(is_there))
               : "memory");
}

// ---- copies in bulk from a warp's area in shared memory

WD_FN bool is_elected() {  // one lane of the warp, always the same
  Word is_it;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p; }" : "=r"(is_it));
  return is_it;
}
// Waits until the area may be written, and lets copies see what was written.
WD_FN void begin_area() {
  if (is_elected()) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  __syncwarp();
}
WD_FN void end_area() {
  publish_stores();
  __syncwarp();
}
// Copies n bytes, a multiple of 4, of at most MOST in the area; all of them in bulk if `to` is aligned to 16 bytes.
template <int MOST>
WD_FN void send(void* const to, const Word area, const int n) {
  if (n == MOST && reinterpret_cast<Long>(to) % 16 == 0) {
    if (is_elected())
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                   "cp.async.bulk.commit_group;" ::"l"(to), "r"(area), "n"(MOST)
                   : "memory");
    return;
  }
#pragma unroll 1
  for (int i = 4 * (threadIdx.x % 32); i < n; i += 4 * 32)
    *reinterpret_cast<Word*>(static_cast<Byte*>(to) + i) = shared1(area + i);
  __syncwarp();
}
WD_FN void await_copies() {
  if (is_elected()) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- numbers

WD_FN Word two(const float low, const float high) {  // bfloat16
  Word both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
WD_FN float of_low(const Word both) { return __uint_as_float(both << 16); }
WD_FN float of_high(const Word both) { return __uint_as_float(both & 0xFFFF0000); }
