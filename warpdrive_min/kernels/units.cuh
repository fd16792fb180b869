// Hidden units of a network with one or two hidden layers, and the last of its layers.
//
// Constants that come before this header: HIDDEN1, HIDDEN2, units of the hidden layers, the latter 0 if there is one;
// IS_TANH, else relu.
#pragma once

constexpr int WD_LAST_HIDDEN = HIDDEN2 ? HIDDEN2 : HIDDEN1;

WD_FN float wd_unit(const float sum) { return IS_TANH ? wd_tanh(sum) : sum < 0.f ? 0.f : sum; }  // NaN stays NaN

// Derivative of a unit, computed from its output.
WD_FN float wd_unit_slope(const float y) { return IS_TANH ? 1.f - y * y : y <= 0.f ? 0.f : 1.f; }
