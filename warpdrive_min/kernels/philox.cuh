// Philox4x32-10, a random number generator without state: the words of a draw follow from its counter
// (step, env, agent, stream) and the seed, the same in CUDA C, Numba and NumPy (`warpdrive_min/rng.py`).
//
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants of Random123 1.14, philox.h.
#pragma once

constexpr unsigned STREAM_START = 1u;     // random starts of episodes
constexpr unsigned STREAM_POOL = 2u;      // which row of a reset pool starts an episode
constexpr unsigned STREAM_SHUFFLE = 3u;   // keys of permutations
constexpr unsigned STREAM_REPLAY = 4u;    // rows drawn from a replay buffer
constexpr unsigned STREAM_ACTIONS = 16u;  // first stream of the samplers

struct wd_words {
  unsigned x, y, z, w;
};

// The word of an index from 0 to 3 that is known at run time only, by selects: an array would live in local memory.
WD_FN unsigned wd_word(const wd_words words, const int index) {
  const unsigned low = index & 1 ? words.y : words.x;
  const unsigned high = index & 1 ? words.w : words.z;
  return index & 2 ? high : low;
}

// The upper half of a product.
WD_FN unsigned wd_upper(const unsigned a, const unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

WD_FN wd_words wd_philox(unsigned step, unsigned env, unsigned agent, unsigned stream, unsigned seed_low,
                         unsigned seed_high) {
  wd_words words = {step, env, agent, stream};
  for (int round = 0; round < 10; ++round) {
#if defined(__CUDACC__)
    const unsigned long long first = 0xD2511F53ull * words.x;  // one wide multiplication on the GPU
    const unsigned long long second = 0xCD9E8D57ull * words.z;
    words = {static_cast<unsigned>(second >> 32) ^ words.y ^ seed_low, static_cast<unsigned>(second),
             static_cast<unsigned>(first >> 32) ^ words.w ^ seed_high, static_cast<unsigned>(first)};
#else  // SIMD has no wide one: the upper half and the lower half
    words = {wd_upper(0xCD9E8D57u, words.z) ^ words.y ^ seed_low, 0xCD9E8D57u * words.z,
             wd_upper(0xD2511F53u, words.x) ^ words.w ^ seed_high, 0xD2511F53u * words.x};
#endif
    seed_low += 0x9E3779B9u;
    seed_high += 0xBB67AE85u;
  }
  return words;
}

// In [0, 1): the upper 24 bits, so that 1 cannot be reached by rounding.
WD_FN float wd_uniform(const unsigned word) { return static_cast<float>(word >> 8) * (1.f / 16777216.f); }

// An integer in [0, n), each with a probability within 2^-32 of 1 / n.
WD_FN int wd_below(const unsigned word, const int n) {
  return static_cast<int>((static_cast<unsigned long long>(word) * static_cast<unsigned>(n)) >> 32);
}

// The row of a reset pool that starts an episode: one for all arrays of an environment.
WD_FN int wd_pool_row(const int episode, const int env, const int seed_low, const int seed_high, const int n_rows) {
  return wd_below(wd_philox(episode, env, 0u, STREAM_POOL, seed_low, seed_high).x, n_rows);
}
