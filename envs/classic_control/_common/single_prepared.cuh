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

// Takes a step. At an episode's end it restarts, by selection instead of a branch. Returns the result of the step. Sets
// `is_late` if the next start was not drawn: `start_late` must follow before the next step.
WD_FN Seen take_prepared(Playing& at, Prepared& prepared, const Action action, float* const ended, bool& is_late) {
  const auto after = outcome(at.state, action, prepared);
  at.reward = after.reward;
  at.is_terminal = after.is_terminal;
  at.timestep += 1;
  at.out_of_time = (at.timestep >= EPISODE_LENGTH) & !at.is_terminal;
  const bool is_done = at.is_terminal | at.out_of_time;
  if (is_done && ended) wd_store(ended, after.seen);
  is_late = is_done & !at.is_drawn;
  at.is_drawn &= !is_done;
  at.timestep = is_done ? 0 : at.timestep;
  at.episode += is_done;
  at.state = is_done ? at.next : after.state;
  prepared = prepare_running(at.state);
  at.seen = observe(at.state);
  return after.seen;
}

// Draws the next starts of all threads of a warp. One that was drawn before is the same again.
WD_FN void draw_next_starts(Playing& at, const int env, const int* const seed, const float (*const pool)[N_AGENTS][N_STATE]) {
  at.next = start(env, at.episode, seed, pool);
  at.is_drawn = true;
}

// Draws the starts of a warp with late episodes, and starts these.
WD_FN void start_late(Playing& at, Prepared& prepared, const bool is_late, const int env, const int* const seed,
                      const float (*const pool)[N_AGENTS][N_STATE]) {
  at.episode -= is_late;
  draw_next_starts(at, env, seed, pool);
  at.episode += is_late;
  at.is_drawn = !is_late;
  at.state = is_late ? at.next : at.state;
  prepared = prepare_running(at.state);
  at.seen = observe(at.state);
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
