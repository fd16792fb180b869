// Random indices: permutations of 0 to n - 1, side by side (`permute`), and rows below a size that the device knows
// (`draw_rows`).
// To the macros an index is an environment of one agent.
//
// Both read counter, the number of the draw, and seed, and write indices; the caller counts on.

constexpr int ROUNDS = 12;

// The finaliser of MurmurHash3 (Appleby, public domain): every bit depends on every other.
WD_FN unsigned mixed(unsigned x) {
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

// A Feistel network permutes the numbers of 2 half_bits bits, at least n and below 4 n of them; an index walks along
// its cycle until it is below n again, 4 steps at most on average, which permutes 0 to n - 1. No memory, no sort.
// With 12 rounds the frequencies of pairs are random even at n = 5: chi-square of 400,000 draws is 16 with 19 degrees of
// freedom (8 rounds: 55; 6: 774).
// Each permutation has two words of the seed. A thread has every n_envs-th of all n_indices; it begins the next as soon as
// one has ended, for lanes that wait for the longest walk of each would take twice as long.
WD_KERNEL(permute)(int* indices, const int* counter, const int* seed, int half_bits, int n, int n_indices, int n_envs) {
  const unsigned mask = (1u << half_bits) - 1u;
  WD_EACH_ENV(local, thread) {
    unsigned keys[ROUNDS], place = 0u;
    int of_keys = -1;
    bool begins = true;
    for (unsigned index = thread; index < static_cast<unsigned>(n_indices);) {
      if (begins) {
        const int permutation = static_cast<int>(index) / n;
        place = index - permutation * n;
        if (permutation != of_keys)
          for (int i = 0; i < ROUNDS / 4; ++i) {
            const wd_words words =
                wd_philox(counter[0], i, 0u, STREAM_SHUFFLE, seed[2 * permutation], seed[2 * permutation + 1]);
            keys[4 * i] = words.x, keys[4 * i + 1] = words.y, keys[4 * i + 2] = words.z, keys[4 * i + 3] = words.w;
          }
        of_keys = permutation;
      }
      unsigned left = place >> half_bits, right = place & mask;
      for (int i = 0; i < ROUNDS; ++i) {
        const unsigned next = left ^ (mixed(right ^ keys[i]) & mask);
        left = right;
        right = next;
      }
      place = left << half_bits | right;
      begins = place < static_cast<unsigned>(n);
      if (begins) {
        indices[index] = static_cast<int>(place);
        index += n_envs;
      }
    }
  }
}

// Uniform below size, with replacement; 0 if the size is 0.
WD_KERNEL(draw_rows)(int* indices, const int* size, const int* counter, const int* seed, int n_envs) {
  WD_EACH_ENV(local, index)
    indices[index] = wd_below(wd_philox(counter[0], index, 0u, STREAM_REPLAY, seed[0], seed[1]).x, size[0]);
}
