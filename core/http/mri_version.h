// The X-MRI-Version header: which minor version of MRI an answer speaks.
#pragma once

#include <cstdint>
#include <optional>

#include "core/http/http.h"

namespace varve::http {

struct MriVersion {
  uint32_t served = 0;              // MRI_1_0 or MRI_1_1
  std::optional<Response> refusal;  // 400: MRI-E010 malformed, MRI-E012 not supported
};

// Absent: 1.0, never the newest, since proxies drop headers they do not know. A later minor of the
// same major is served as the newest known; the client must read the echo.
MriVersion negotiate_mri(const Request& request);

// X-MRI-Version (the version served) and X-MRI-Supported, which every answer carries.
void add_mri_headers(uint32_t served, Response* response);

}  // namespace varve::http
