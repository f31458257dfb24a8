#include "whole_step.h"

#include "clock.h"
#include "failure.h"

pf_status pf_whole_step(const pf_data *data, pf_step *step, int64_t position, float *loss, double *us) {
    int64_t count = pf_image_data.micro_batches;
    double sum = 0.0;
    float last = 0.0f;
    *us = 0.0;
    for (int64_t i = 0; i < count; i++) {
        PF_TRY(pf_data_fill(data, step, PF_TRAIN, position + i * pf_batch(), INT64_MAX));
        double start = pf_now_us();
        PF_TRY(pf_run_train(step, &last));
        *us += pf_now_us() - start;
        sum += (double)last;
    }
    *loss = (float)pf_step_loss(sum, last);
    return PF_OK;
}
