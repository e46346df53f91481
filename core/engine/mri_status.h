// MRI results as absl::Status.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "mri/status.h"

namespace varve {

// Ready to be handed to a call.
mri_error empty_error();

// "init_context: <the plugin's text>", or the meaning of `status` where the plugin gave none. Not
// for MRI_OK.
absl::Status to_status(std::string_view call, mri_status status, const mri_error& error);

}  // namespace varve
