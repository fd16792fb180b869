// Steps on a GPU of environments with `prepare`. With few environments a warp has a scheduler to itself, and each step
// waits for its own chain of instructions. So the work that does not wait is in the same straight piece of code: the
// values that the next step needs of its state, and the random words of the next four steps. `single_kernels.cuh`
// includes this.
#pragma once

typedef decltype(prepare(State{})) Prepared;
constexpr bool IS_PREPARED = !are_same<Prepared, Nothing>;
static_assert(!IS_PREPARED || are_same<State, Seen>, "prepared steps observe every state, which must take no time");

constexpr unsigned WARP = 0xFFFFFFFFu;
constexpr int GROUP = 4;  // steps in a piece of code; a block of Philox has as many words

// Draws the starts of a warp with late episodes, and starts these. One that was drawn before is the same again.
WD_FN void start_late(Playing& at, Prepared& prepared, const bool is_late, const int env, const int* const seed,
                      const float (*const pool)[N_AGENTS][N_STATE]) {
  draw_next_start(at, env, seed, pool);
  restart(at, is_late);
  prepared = prepare_running(at.state);
}

// Returns four of the eight words of adjacent blocks, from an offset of 0 to 3.
WD_FN wd_words words_from(const wd_words& a, const wd_words& b, const unsigned offset) {
  const bool by_one = offset & 1u, by_two = offset & 2u;
  const unsigned x = by_one ? a.y : a.x, y = by_one ? a.z : a.y, z = by_one ? a.w : a.z, w = by_one ? b.x : a.w;
  return {by_two ? z : x, by_two ? w : y, by_two ? (by_one ? b.y : b.x) : z, by_two ? (by_one ? b.z : b.y) : w};
}

// Random words of the next steps, drawn four steps ahead.
struct WordsAhead {
  wd_words block, following;
  unsigned next_word;
  int env, stream, seed_low, seed_high;

  WD_METHOD wd_words drawn() const { return wd_philox(next_word / 4u, env, 0, stream, seed_low, seed_high); }

  WD_METHOD void begin(const unsigned first_word) {
    next_word = first_word;
    block = drawn();
    next_word += GROUP;
    following = drawn();
    next_word += GROUP;
  }

  WD_METHOD wd_words of_group() const { return words_from(block, following, next_word % 4u); }

  WD_METHOD void draw() {
    block = following;
    following = drawn();
    next_word += GROUP;
    // Without this the compiler draws after the steps, when nothing else is left to do.
    asm volatile("" : "+r"(following.x), "+r"(following.y), "+r"(following.z), "+r"(following.w));
  }
};
