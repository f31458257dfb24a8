#include "commands.h"
#include "events.h"

static void put_tensor(const char *key, const pf_tensor *tensor) {
    pf_object(key);
    pf_text("name", tensor->name);
    pf_text("dtype", pf_dtype_name(tensor->dtype));
    pf_array("shape");
    for (int axis = 0; axis < tensor->rank; axis++) pf_element(tensor->shape[axis]);
    pf_array_end();
    pf_object_end();
}

static void put_kernels(const char *key, const pf_program *program) {
    pf_array(key);
    for (uint32_t i = 0; i < program->call_count; i++) {
        const pf_call *call = &program->calls[i];
        pf_object(NULL);
        pf_integer("index", i);
        pf_text("name", call->name);
        pf_text("phase", call->phase);
        pf_integer("flops", (int64_t)call->flops);
        pf_integer("bytes_read", (int64_t)call->bytes_read);
        pf_integer("bytes_written", (int64_t)call->bytes_written);
        pf_object_end();
    }
    pf_array_end();
}

static const char *const schedule_kinds[] = {"constant", "cosine", "linear"};

static void put_optimizer(void) {
    const pf_image *image = &pf_image_data;
    pf_object("optimizer");
    pf_text("kind", image->optimizer);
    pf_number("learning_rate", image->learning_rate);
    for (uint32_t i = 0; i < image->setting_count; i++) pf_number(image->settings[i].name, image->settings[i].value);
    pf_object("schedule");
    pf_text("kind", schedule_kinds[image->schedule.kind]);
    pf_integer("warmup_steps", image->schedule.warmup_steps);
    pf_number("final_ratio", image->schedule.final_ratio);
    pf_object_end();
    pf_object_end();
    pf_integer("micro_batches", image->micro_batches);
}

void pf_command_info(void) {
    const pf_image *image = &pf_image_data;
    pf_event("info");
    pf_object("identity");
    for (uint32_t i = 0; i < image->identity_count; i++) pf_text(image->identity[i].key, image->identity[i].value);
    pf_object_end();
    pf_integer("batch", image->batch);
    pf_array("inputs");
    for (int i = 0; i < image->input_count; i++) put_tensor(NULL, &image->inputs[i]);
    pf_array_end();
    pf_array("labels");
    for (int i = 0; i < image->label_count; i++) put_tensor(NULL, &image->labels[i]);
    pf_array_end();
    put_tensor("logits", &image->logits);
    pf_text("loss", image->term_count == 1 ? image->terms[0].name : "sum");
    put_optimizer();
    pf_integer("threads", image->threads);
    pf_integer("arena_bytes", (int64_t)image->sizes.arena_bytes);
    pf_integer("weights_bytes", (int64_t)image->sizes.weights_bytes);
    pf_integer("optimizer_bytes", (int64_t)image->sizes.optimizer_bytes);
    pf_integer("mapped_bytes", (int64_t)image->total_bytes);
    put_kernels("kernels", &image->train);
    put_kernels("forward_kernels", &image->forward);
    if (image->accumulate.call_count) put_kernels("accumulate_kernels", &image->accumulate);
    pf_event_end();
}
