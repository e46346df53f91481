#include "core/route/statistics/confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace varve::statistics {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// In units of 1 / sqrt(p (1 - p)): l of about sqrt(2 log(1/alpha) / n) is the best for n.
constexpr double kLargestScale = 0.6;
constexpr int kShareScales = 6;

// log E exp(l W) of a 0/1 variable with mean p.
double cumulant(double p, double l) { return std::log1p(p * std::expm1(l)); }

// log of the mean of exp(values).
template <size_t kCount>
double log_mean_exp(const double (&values)[kCount]) {
  const double largest = *std::max_element(std::begin(values), std::end(values));
  double sum = 0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum / kCount);
}

// How many of the values are <= x.
double count_up_to(std::span<const double> sorted, double x) {
  return static_cast<double>(std::upper_bound(sorted.begin(), sorted.end(), x) - sorted.begin());
}

double count_below(std::span<const double> sorted, double x) {
  return static_cast<double>(std::lower_bound(sorted.begin(), sorted.end(), x) - sorted.begin());
}

}  // namespace

std::vector<double> ascending(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values;
}

Values ascending(Values values) {
  return {ascending(std::move(values.lower)), ascending(std::move(values.upper))};
}

double log_evidence_of_share(double n, double sum, double p, bool above) {
  double logs[kShareScales];
  double scale = kLargestScale / std::sqrt(p * (1 - p));
  for (double& log : logs) {
    const double l = above ? scale : -scale;
    log = l * sum - n * cumulant(p, l);
    scale /= 2;
  }
  return log_mean_exp(logs);
}

PairEvidence::PairEvidence(double p, double first_part) {
  // The best pair of l is in inverse proportion to the arms' sizes.
  const double base = kLargestScale / std::sqrt(p * (1 - p));
  const double spread = 2 * std::sqrt(first_part * (1 - first_part));
  double first = base * spread / (2 * first_part);
  double second = base * spread / (2 * (1 - first_part));
  for (Scale& scale : scales_) {
    scale = {-first, cumulant(p, -first), second, cumulant(p, second)};
    first /= 2;
    second /= 2;
  }
}

double PairEvidence::log_evidence(double first_n, double first_sum, double second_n,
                                  double second_sum) const {
  // Both count twice: half of the mixture.
  double logs[4 * kScales];
  for (int i = 0; i < kScales; ++i) {
    const Scale& at = scales_[i];
    double* const log = logs + 4 * i;
    log[0] = at.first_l * first_sum - first_n * at.first_cumulant;
    log[1] = at.second_l * second_sum - second_n * at.second_cumulant;
    log[2] = log[3] = log[0] + log[1];
  }
  return log_mean_exp(logs);
}

Interval quantile_interval(std::span<const double> sorted, double p, double alpha) {
  const auto n = static_cast<double>(sorted.size());
  const double enough = std::log(2 / alpha);
  Interval interval{-kInfinity, kInfinity};
  // Smallest value at or below which there are enough for a share of p.
  const auto lower = std::partition_point(sorted.begin(), sorted.end(), [&](const double& value) {
    const double count = count_up_to(sorted, value);
    return log_evidence_of_share(n, count, p, false) >= enough;
  });
  // With nothing below it, is a value refuted? If not, the data set no lower bound.
  if (lower != sorted.end() && log_evidence_of_share(n, 0, p, false) >= enough)
    interval.lower = *lower;
  const auto upper = std::partition_point(sorted.begin(), sorted.end(), [&](const double& value) {
    return log_evidence_of_share(n, count_below(sorted, value), p, true) < enough;
  });
  // Values up to this one are kept; all between it and its predecessor too.
  if (log_evidence_of_share(n, n, p, true) >= enough)
    interval.upper = upper == sorted.end() ? sorted.back() : *std::prev(upper);
  return interval;
}

Interval quantile_interval(const Values& sorted, double p, double alpha) {
  return {quantile_interval(sorted.lower, p, alpha).lower,
          quantile_interval(sorted.upper, p, alpha).upper};
}

double sample_quantile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
  const double rank = std::ceil(p * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(
      std::clamp(rank - 1, 0.0, static_cast<double>(sorted.size() - 1)))];
}

double log_evidence_of_no_more(std::span<const double> control, std::span<const double> treatment,
                               double p, double factor, double control_part, double repeat) {
  const PairEvidence pair(p, control_part);
  const double n_control = repeat * static_cast<double>(control.size());
  const double n_treatment = repeat * static_cast<double>(treatment.size());
  // Between two values of the control the evidence only grows with x, so that its smallest value is
  // at one of them, or below all.
  double smallest = pair.log_evidence(n_control, 0, n_treatment, 0);
  size_t below = 0;  // of the treatment, <= factor x
  for (size_t i = 0; i < control.size(); ++i) {
    if (i + 1 < control.size() && control[i + 1] == control[i]) continue;
    const double bound = factor * control[i];
    while (below < treatment.size() && treatment[below] <= bound) ++below;
    smallest = std::min(smallest, pair.log_evidence(n_control, repeat * (i + 1.0), n_treatment,
                                                    repeat * static_cast<double>(below)));
  }
  return smallest;
}

double log_evidence_of_more(std::span<const double> control, std::span<const double> treatment,
                            double p, double factor, double control_part, double repeat) {
  // y, the treatment's quantile, has F_treatment(y) >= p and F_control(z) <= p for all z below the
  // control's quantile; and if the hypothesis holds, every z < y / factor is below it. So: the
  // share of treatments <= y is at least p, and that of controls < y / factor at most p.
  const PairEvidence pair(p, 1 - control_part);
  const double n_control = repeat * static_cast<double>(control.size());
  const double n_treatment = repeat * static_cast<double>(treatment.size());
  double smallest = pair.log_evidence(n_treatment, 0, n_control, 0);
  size_t below = 0;  // of the control, factor x < y
  for (size_t i = 0; i < treatment.size(); ++i) {
    if (i + 1 < treatment.size() && treatment[i + 1] == treatment[i]) continue;
    while (below < control.size() && factor * control[below] < treatment[i]) ++below;
    smallest = std::min(smallest, pair.log_evidence(n_treatment, repeat * (i + 1.0), n_control,
                                                    repeat * static_cast<double>(below)));
  }
  return smallest;
}

double log_evidence_of_no_more(const Values& control, const Values& treatment, double p,
                               double factor, double control_part, double repeat) {
  return log_evidence_of_no_more(control.lower, treatment.upper, p, factor, control_part, repeat);
}

double log_evidence_of_more(const Values& control, const Values& treatment, double p, double factor,
                            double control_part, double repeat) {
  return log_evidence_of_more(control.upper, treatment.lower, p, factor, control_part, repeat);
}

namespace {

// The smallest share that is not refuted as too small.
double share_lower(double n, double sum, double alpha) {
  constexpr int kScales = 9;
  double refuted = 0, kept = 1;
  for (int step = 0; step < 50; ++step) {
    const double p = (refuted + kept) / 2;
    double logs[kScales];
    double l = 8;
    for (double& log : logs) {
      log = l * sum - n * cumulant(p, l);
      l /= 2;
    }
    (log_mean_exp(logs) >= std::log(2 / alpha) ? refuted : kept) = p;
  }
  return refuted;
}

}  // namespace

Interval share_interval(double n, double sum_min, double sum_max, double alpha) {
  return {share_lower(n, sum_min, alpha), 1 - share_lower(n, n - sum_max, alpha)};
}

namespace {

// The capital of bets that the mean is above m, in logs; `values` in [0, 1].
class Bettor {
 public:
  // Bets depend on the past alone: on a running mean and variance that start at 1/2 and 1/4.
  Bettor(std::span<const double> values, double alpha) : values_(values) {
    double sum = 0.5, squares = 0.25;
    bets_.reserve(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double t = static_cast<double>(i) + 1;
      bets_.push_back(std::sqrt(2 * std::log(2 / alpha) / (squares * std::log1p(t))));
      sum += values[i];
      const double mean = sum / (t + 1);
      squares += (values[i] - mean) * (values[i] - mean);
    }
  }

  double log_capital(double m) const {
    const double bet_max = kPartMax / std::max(m, 1e-12);
    double capital = 0;
    for (size_t i = 0; i < values_.size(); ++i)
      capital += std::log1p(std::min(bets_[i], bet_max) * (values_[i] - m));
    return capital;
  }

  // The capital falls as m rises: the smallest m that is not refuted.
  double lower(double alpha) const {
    const double enough = std::log(2 / alpha);
    if (log_capital(0) < enough) return 0;
    double refuted = 0, kept = 1;
    for (int i = 0; i < 50; ++i) {
      const double middle = (refuted + kept) / 2;
      (log_capital(middle) >= enough ? refuted : kept) = middle;
    }
    return refuted;
  }

 private:
  static constexpr double kPartMax = 0.75;  // of the capital at stake, so that it never ends
  std::span<const double> values_;
  std::vector<double> bets_;
};

}  // namespace

Interval mean_interval(std::span<const double> values, double low, double high, double alpha) {
  std::vector<double> unit, mirrored;
  for (const double value : values) {
    unit.push_back(std::clamp((value - low) / (high - low), 0.0, 1.0));
    mirrored.push_back(1 - unit.back());
  }
  const double from = Bettor(unit, alpha).lower(alpha);
  const double to = 1 - Bettor(mirrored, alpha).lower(alpha);
  return {low + from * (high - low), low + to * (high - low)};
}

}  // namespace varve::statistics
