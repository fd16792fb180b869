// Where the layers of two networks lie in the vector of parameters.
#pragma once

struct Places {  // first number of each layer
  int w1, b1, w2, b2, w3, b3, v3, c3;
};

// Those of the value's network, 0, or of the policy's, 1.
WD_FN Places places_of(const int* const all, const int network) {
  const int* const of = all + 8 * network;
  return {of[0], of[1], of[2], of[3], of[4], of[5], of[6], of[7]};
}
