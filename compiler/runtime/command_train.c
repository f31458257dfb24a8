#include "commands.h"

#include <inttypes.h>
#include <math.h>

#include "events.h"
#include "failure.h"
#include "run_events.h"
#include "stop.h"
#include "whole_step.h"

static void put_step(int64_t number, double loss, double us) {
    pf_event("step");
    pf_integer("step", number);
    pf_number("loss", loss);
    pf_number("us", us);
    pf_event_end();
}

pf_status pf_command_train(const pf_options *options, pf_step *step, const pf_data *data) {
    int64_t done = 0;
    if (options->learning_rate >= 0) pf_set_learning_rate(step, options->learning_rate);
    pf_event_start(step);
    for (; done < options->steps && !pf_stop_requested; done++) {
        float loss = 0.0f;
        double us;
        PF_TRY(pf_whole_step(data, step, done * pf_step_samples(), &loss, &us));
        if (!isfinite(loss))
            return pf_fail(PF_USER, "train.diverged", "the loss of step %" PRId64 " is %s; lower the learning rate (now %g) or check the "
                           "data", pf_steps_done(step), isnan(loss) ? "NaN" : "infinite", step->learning_rate);
        put_step(done + 1, loss, us);
    }
    if (options->save) PF_TRY(pf_save(step, options->save, PF_SAVE_ALL));
    pf_event_finish(done);
    return PF_OK;
}

pf_status pf_command_export(const pf_options *options, pf_step *step) {
    pf_event_start(step);
    PF_TRY(pf_save(step, options->out, PF_SAVE_PARAMETERS));
    pf_event_finish(0);
    return PF_OK;
}
