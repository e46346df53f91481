// add_mri_routes() with limits of one's own, for tests.
#pragma once

#include <vector>

#include "core/http/mri_calls.h"
#include "core/http/service.h"

namespace varve::http {

// Contexts live as long as the routes.
void add_mri_routes(Service& service, std::vector<Route>& routes, const MriLimits& limits);

}  // namespace varve::http
