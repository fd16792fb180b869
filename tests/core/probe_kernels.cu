// The device functions of the core, one item each; the test looks at what they return.

WD_KERNEL(words)(const int* counters, const int* seed, int* out, int n_envs) {
  WD_EACH_ENV(local, i) {
    const int* const counter = counters + 4 * i;
    const wd_words words = wd_philox(counter[0], counter[1], counter[2], counter[3], seed[0], seed[1]);
    for (int k = 0; k < 4; ++k) out[4 * i + k] = static_cast<int>(wd_word(words, k));
  }
}

WD_KERNEL(derived)(const int* words, const int* seed, float* uniforms, int* integers, int n, int n_envs) {
  WD_EACH_ENV(local, i) {
    uniforms[i] = wd_uniform(words[i]);
    integers[2 * i] = wd_below(words[i], n);
    integers[2 * i + 1] = wd_pool_row(words[i], i, seed[0], seed[1], n);
  }
}

WD_KERNEL(functions)(const float* x, float* out, int n_envs) {
  WD_EACH_ENV(local, i) {
    float* const y = out + 7 * i;
    y[0] = wd_exp(x[i]);
    y[1] = wd_log(wd_clip(x[i] < 0.f ? -x[i] : x[i], 1e-30f, 1e30f));
    y[2] = wd_sin(x[i]);
    y[3] = wd_cos(x[i]);
    y[4] = wd_wrap(x[i], 6.2831855f);
    y[5] = wd_clip(x[i], -1.f, 2.f);
    y[6] = wd_principal(x[i]);
  }
}

struct alignas(16) Four {
  float a, b, c, d;
};

WD_KERNEL(fours)(const float* from, float* to, int n_envs) {
  WD_EACH_ENV(local, i) {
    const Four four = wd_load<Four>(from + 4 * i);
    wd_store(to + 4 * i, Four{four.d, four.c, four.b, four.a});
  }
}
