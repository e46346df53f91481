// Statistics that stay valid however often somebody looks.
//
// Everything here is built from e-processes: non-negative numbers that start at 1 and, while a null
// hypothesis holds, have expectation at most 1 at every stopping time. By Ville's inequality the
// chance that one of them EVER reaches 1/alpha is at most alpha. So a number computed from all data
// at the time of a report may be compared with 1/alpha at every report, and one may stop because of
// it: no look has to be announced, corrected for, or remembered.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace varve::statistics {

struct Interval {
  double lower = 0, upper = 0;
};

// As the functions on quantiles take them.
std::vector<double> ascending(std::vector<double> values);

// Values of which some are not settled: each is at least `lower` and at most `upper`. As these have
// evidence only to lose from what is assumed, none of the guarantees depends on which values are
// settled when somebody looks, and why.
struct Values {
  std::vector<double> lower, upper;
};
Values ascending(Values values);

// Evidence about a share of 0/1 (or [0, 1]) observations with sum `sum`, in nats.
//
// If the conditional mean of W in [0, 1] is at most p, then for l >= 0, by convexity,
// E exp(l W) <= 1 - p + p exp(l); the same holds for a mean of at least p and l <= 0. So
// exp(l S_n - n log(1 - p + p exp(l))) is an e-process, and so is a mixture of them over l. The
// mixture here has one l per octave, which serves sample sizes from about 30 to 30,000: it is the
// discrete form of the mixtures of Howard, Ramdas, McAuliffe and Sekhon (2021, arXiv 1810.08240).
//
// One arm: against "the share is at most p" (`above`) or "at least p" (not `above`).
double log_evidence_of_share(double n, double sum, double p, bool above);

// Of a share of 0/1 observations, of which between `sum_min` and `sum_max` are 1; both ends
// together hold at all times with probability 1 - alpha. The order of the observations does not
// matter. Mixture as above, with l that do not depend on p.
Interval share_interval(double n, double sum_min, double sum_max, double alpha);

// Two independent arms at once: the product of an e-process of each is one. Against "the share of
// the first is at least p AND that of the second at most p". Half of the mixture bets on both with
// the l that suit their sizes, a quarter on each alone. `first_part`: 0 < part < 1 of the units
// that go to the first arm by design.
class PairEvidence {
 public:
  PairEvidence(double p, double first_part);
  double log_evidence(double first_n, double first_sum, double second_n, double second_sum) const;

 private:
  static constexpr int kScales = 6;
  struct Scale {
    double first_l, first_cumulant, second_l, second_cumulant;
  };
  Scale scales_[kScales];
};

// Of the quantile p of a distribution, from independent values in ascending order; +-infinity where
// the data do not bound it (too few). Valid at all sample sizes at once, both ends together, with
// probability 1 - alpha: a confidence sequence for a quantile as in Howard and Ramdas (2022, arXiv
// 1906.09712). x is kept while neither "F(x) >= p" nor "F(x-) <= p" is refuted; both are true of
// the quantile whatever the distribution, ties included.
Interval quantile_interval(std::span<const double> sorted, double p, double alpha);
Interval quantile_interval(const Values& sorted, double p, double alpha);

// The smallest value that at least the share p of the values do not exceed; NaN for none.
double sample_quantile(std::span<const double> sorted, double p);

// log of the evidence against "quantile p of `treatment` > factor x quantile p of `control`", from
// independent values in ascending order (+infinity allowed: never came). At alpha: refuted when it
// reaches log(1/alpha). `control_part`: see PairEvidence.
//
// If the hypothesis holds, x = the control's quantile has F_control(x) >= p and
// F_treatment(factor x) < p; that pair of shares is refuted by PairEvidence at x with probability
// at most alpha, ever. x is unknown, so the smallest evidence over all x counts.
//
// `repeat` asks what would be known if the data came `repeat` times over: for planning.
double log_evidence_of_no_more(std::span<const double> control, std::span<const double> treatment,
                               double p, double factor, double control_part, double repeat = 1);
// Against "quantile p of `treatment` <= factor x quantile p of `control`".
double log_evidence_of_more(std::span<const double> control, std::span<const double> treatment,
                            double p, double factor, double control_part, double repeat = 1);
// The least evidence that the values may give: each arm's unsettled ones speak against the claim.
double log_evidence_of_no_more(const Values& control, const Values& treatment, double p,
                               double factor, double control_part, double repeat = 1);
double log_evidence_of_more(const Values& control, const Values& treatment, double p, double factor,
                            double control_part, double repeat = 1);

// Of the mean of observations in [low, high] (values outside are clipped), in the order in which
// they came; each end holds at all times with probability 1 - alpha / 2. Betting: the capital of
// somebody who bets against "the mean is m" before each observation is an e-process; what m makes
// rich is refuted (Waudby-Smith and Ramdas 2024, arXiv 2010.09686: their predictable plug-in bets).
// Assumes that the conditional mean of each observation is the mean.
Interval mean_interval(std::span<const double> values, double low, double high, double alpha);

}  // namespace varve::statistics
