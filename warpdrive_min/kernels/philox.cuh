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

// Environments of lower ranks: a draw's environment is counted over all ranks.
#if !defined(WD_ENVS_BEFORE)
#define WD_ENVS_BEFORE 0
#endif

struct wd_words {
  unsigned x, y, z, w;
};

// The word of an index 0 to 3 that is only known at run time. It uses selects, as an array would be in local memory.
WD_FN unsigned wd_word(const wd_words words, const int index) {
  const unsigned low = index & 1 ? words.y : words.x;
  const unsigned high = index & 1 ? words.w : words.z;
  return index & 2 ? high : low;
}

// A thread's latest block of words, and the index of its next word.
struct wd_supply {
  wd_words words;
  unsigned next;
};

// The upper half of a product.
WD_FN unsigned wd_upper(const unsigned a, const unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

WD_FN wd_words wd_philox(unsigned step, unsigned env, unsigned agent, unsigned stream, unsigned seed_low,
                         unsigned seed_high) {
  wd_words words = {step, env + WD_ENVS_BEFORE, agent, stream};
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

// Takes the next word of an agent. Four are computed at a time, in each call unless the thread `keeps` those of the last one.
WD_FN unsigned wd_take(wd_supply& supply, const bool keeps, const int env, const int agent, const int stream,
                       const int* const seed) {
  const unsigned word = supply.next++;
  if (!keeps || word % 4u == 0u) supply.words = wd_philox(word / 4u, env, agent, stream, seed[0], seed[1]);
  return wd_word(supply.words, static_cast<int>(word % 4u));
}

#if !defined(__CUDACC__)

// On the CPU, Philox in SIMD. Eight lanes of 64 bits hold words in their lower halves; the upper halves are arbitrary.
// Multiplying lower halves gives 64-bit products. Values that are equal in all lanes, and their results, are scalars.
typedef unsigned long long wd_number;
typedef wd_number wd_lanes __attribute__((vector_size(64)));
typedef unsigned wd_halves __attribute__((vector_size(32)));
constexpr int WD_LANES = 8;

WD_FN wd_number wd_times(const wd_number word, const unsigned factor) { return (word & 0xFFFFFFFFu) * factor; }

WD_FN wd_lanes wd_times(const wd_lanes words, const unsigned factor) {
#if defined(__AVX512F__) && !defined(__clang__)  // g++ itself would multiply all 64 bits, in three times the time
  typedef int ints __attribute__((vector_size(64)));
  typedef long long longs __attribute__((vector_size(64)));
  return (wd_lanes)__builtin_ia32_pmuludq512_mask((ints)words, (ints)(wd_lanes{} + factor), longs{}, 255);
#elif defined(__AVX2__) && !defined(__clang__)
  typedef int ints __attribute__((vector_size(32)));
  union {
    wd_lanes all;
    ints half[2];
  } both = {words};
  for (ints& half : both.half) half = (ints)__builtin_ia32_pmuludq256(half, ints{} + static_cast<int>(factor));
  return both.all;
#else
  return (words & 0xFFFFFFFFu) * factor;
#endif
}

struct wd_words_of_lanes {
  wd_lanes x, y, z, w;
};

template <int ROUND = 0, class X, class Y, class Z, class W>
WD_FN wd_words_of_lanes wd_philox_lanes(X x, Y y, Z z, W w, const unsigned seed_low, const unsigned seed_high) {
  if constexpr (ROUND == 10) {
    return {x, y, z, w};
  } else {
    const auto first = wd_times(x, 0xD2511F53u);
    const auto second = wd_times(z, 0xCD9E8D57u);
    return wd_philox_lanes<ROUND + 1>((second >> 32) ^ y ^ wd_number{seed_low}, second,
                                      (first >> 32) ^ w ^ wd_number{seed_high}, first, seed_low + 0x9E3779B9u,
                                      seed_high + 0xBB67AE85u);
  }
}

WD_FN void wd_store_lanes(unsigned* const to, const wd_lanes words) {
  const wd_halves halves = __builtin_convertvector(words, wd_halves);
  std::memcpy(to, &halves, sizeof halves);
}

constexpr int WD_TILE = 128;  // rows whose words are drawn at once

// Blocks of words of up to WD_TILE rows, one for each agent of each environment, with their counters and seed.
template <int ROWS>
struct wd_blocks {
  alignas(64) unsigned of[4][(ROWS + 15) / 16 * 16];
  int first_row, n_rows;
  unsigned block, stream, seed_low, seed_high;

  bool are(const int row, const int n, const unsigned number, const unsigned of_stream, const int* const seed) const {
    return first_row == row && n_rows == n && block == number && stream == of_stream &&
           seed_low == static_cast<unsigned>(seed[0]) && seed_high == static_cast<unsigned>(seed[1]);
  }

  void draw(const int row, const int n, const unsigned number, const unsigned of_stream, const int* const seed) {
    const unsigned low = seed[0], high = seed[1];  // which no store can change
    first_row = row, n_rows = n, block = number, stream = of_stream, seed_low = low, seed_high = high;
    wd_lanes env{}, agent{};
    for (int lane = 0; lane < WD_LANES; ++lane) {
      env[lane] = (row + lane) / N_AGENTS + WD_ENVS_BEFORE;
      agent[lane] = (row + lane) % N_AGENTS;
    }
    for (int to = 0; to < n; to += WD_LANES) {
      wd_words_of_lanes words;
      if constexpr (N_AGENTS == 1)
        words = wd_philox_lanes(wd_number{number}, env, wd_number{0}, wd_number{of_stream}, low, high);
      else
        words = wd_philox_lanes(wd_number{number}, env, agent, wd_number{of_stream}, low, high);
      wd_store_lanes(of[0] + to, words.x);
      wd_store_lanes(of[1] + to, words.y);
      wd_store_lanes(of[2] + to, words.z);
      wd_store_lanes(of[3] + to, words.w);
      agent += WD_LANES % N_AGENTS;
      const auto is_next = agent >= N_AGENTS;  // -1 in its lanes
      agent -= (wd_lanes)is_next & N_AGENTS;
      env += WD_LANES / N_AGENTS - (wd_lanes)is_next;
    }
  }
};

// Blocks serve up to four draws: each thread caches those of this many tiles.
constexpr int WD_KEPT_TILES = 128;
static thread_local wd_blocks<WD_TILE> wd_kept[WD_KEPT_TILES];

// The words that a draw of N_WORDS takes for each row of a tile; `step` draws after the counted ones.
template <int N_WORDS>
struct wd_drawn_words {
  unsigned of[N_WORDS][WD_TILE];

  void draw(const int tile, const int first_row, const int n_rows, const int* const draws, const unsigned stream,
            const int* const seed, const unsigned step = 0u) {
    const int first_env = first_row / N_AGENTS, end_env = (first_row + n_rows - 1) / N_AGENTS + 1;
    int difference = 0;
    for (int env = first_env; env < end_env; ++env) difference |= draws[env] ^ draws[first_env];
    const int n_alike = difference ? 1 : n_rows;
    for (int row = 0; row < n_rows; row += n_alike) {
      const unsigned first_word = (draws[(first_row + row) / N_AGENTS] + step) * N_WORDS;
      wd_blocks<WD_TILE>& blocks = wd_kept[tile % WD_KEPT_TILES];
      for (unsigned i = 0; i < N_WORDS; ++i) {
        const unsigned word = first_word + i;
        if (!blocks.are(first_row + row, n_alike, word / 4u, stream, seed))
          blocks.draw(first_row + row, n_alike, word / 4u, stream, seed);
        const unsigned* const words = blocks.of[word % 4u];
        WD_INDEPENDENT for (int to = 0; to < n_alike; ++to) of[i][row + to] = words[to];
      }
    }
  }
};

#endif

// In [0, 1): the upper 24 bits, so that 1 cannot be reached by rounding.
WD_FN float wd_uniform(const unsigned word) { return static_cast<float>(word >> 8) * (1.f / 16777216.f); }

// One of n choices, uniformly: the sampler's draw from equal weights.
WD_FN int wd_choice(const unsigned word, const int n) {
  if (n == 2) return static_cast<int>(word >> 31);  // the same, without a conversion
  return wd_min(static_cast<int>(wd_uniform(word) * static_cast<float>(n)), n - 1);
}

// Calls use(row, agent, i, word) with each of the N_WORDS words that a draw takes for each agent of this block. Rows count
// the agents of all environments. The draw is `step` draws after the counted ones. The caller must synchronise the block
// before it counts.
template <int N_WORDS, class Use>
WD_FN void wd_each_drawn(const int* const draws, const int* const seed, const int stream, const int n_envs,
                         const unsigned step, const Use& use) {
#if defined(__CUDACC__)
  WD_EACH_AGENT(local, env, agent) {
    wd_supply supply;
    supply.next = (static_cast<unsigned>(draws[env]) + step) * N_WORDS;
    for (int i = 0; i < N_WORDS; ++i)
      use(static_cast<long long>(env) * N_AGENTS + agent, agent, i, wd_take(supply, i > 0, env, agent, stream, seed));
  }
#else
  constexpr int N_TILES = (WD_ITEMS_OF_A_PART + WD_TILE - 1) / WD_TILE;  // of a block
  const int first_row = WD_FIRST_ENV * N_AGENTS + WD_FIRST_ITEM;
  const int end_row = wd_min(WD_FIRST_ENV * N_AGENTS + WD_END_ITEM, n_envs * N_AGENTS);
  for (int first = first_row; first < end_row; first += WD_TILE) {
    const int n_rows = wd_min(WD_TILE, end_row - first);
    wd_drawn_words<N_WORDS> words;
    words.draw(WD_BLOCK * N_TILES + (first - first_row) / WD_TILE, first, n_rows, draws, stream, seed, step);
    WD_INDEPENDENT for (int row = 0; row < n_rows; ++row) {
      for (int i = 0; i < N_WORDS; ++i)
        use(static_cast<long long>(first + row), (first + row) % N_AGENTS, i, words.of[i][row]);
    }
  }
#endif
}

// An integer in [0, n), each with a probability within 2^-32 of 1 / n.
WD_FN int wd_below(const unsigned word, const int n) {
  return static_cast<int>((static_cast<unsigned long long>(word) * static_cast<unsigned>(n)) >> 32);
}

// The row of a reset pool that starts an episode: one for all arrays of an environment.
WD_FN int wd_pool_row(const int episode, const int env, const int seed_low, const int seed_high, const int n_rows) {
  return wd_below(wd_philox(episode, env, 0u, STREAM_POOL, seed_low, seed_high).x, n_rows);
}
