// Resets of environments that have no `reset` kernel of their own. Affected are those with _done_ != 0, or all with
// force.
//
// Arrays are copied as 32-bit words, whatever their dtype; threads stride over the words of the block's environments,
// so that ENVS_PER_BLOCK * n_words should be about THREADS.

// Writes row `env` of target: row `env` of source if n_rows is 0 (a saved copy), else the row of the pool, of n_rows
// rows, that the episode draws, the same for every target.
WD_KERNEL(reset_rows)(int* target, const int* source, const int* _done_, const int* _episode_, const int* _reset_seed_,
                      int n_words, int n_rows, int force, int n_envs) {
  for (int item = WD_THREAD; item < ENVS_PER_BLOCK * n_words; item += WD_STRIDE) {
    const int local = ENVS_PER_BLOCK == 1 ? 0 : item / n_words, word = item - local * n_words;
    const int env = WD_BLOCK * ENVS_PER_BLOCK + local;
    if (env >= n_envs || !(force || _done_[env])) continue;
    const int row = n_rows ? wd_pool_row(_episode_[env], env, _reset_seed_[0], _reset_seed_[1], n_rows) : env;
    target[static_cast<long long>(env) * n_words + word] = source[static_cast<long long>(row) * n_words + word];
  }
}

// Starts the next episode's bookkeeping; runs after all `reset_rows`, which still read _done_ and _episode_.
WD_KERNEL(undo_done)(int* _done_, int* _timestep_, int* _episode_, int force, int n_envs) {
  WD_EACH_ENV(local, env) {
    if (force || _done_[env]) {
      _episode_[env] += 1;
      _timestep_[env] = 0;
      _done_[env] = 0;
    }
  }
}
